package decide

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Bounds of what the schema takes of a node, in bytes and in entries.
const (
	mostAddress = 261
	mostWord    = 128
	mostWords   = 16
	mostDigests = 32
)

const (
	// NodePause is the least between two writes of one object, however often its node falls silent.
	NodePause = 15 * time.Second
	// NodeFigures is the least between a write and one of figures alone: what the node says, and its snapshots.
	NodeFigures = 10 * time.Minute
	// freePart of its RAM is what the free bytes of a node have to move by.
	freePart = 16
)

// Reasons of the condition Ready of a GodwitNode.
const (
	ReasonNodeHeard       Reason = "Heard"
	ReasonNodeMute        Reason = "NodeMute"
	ReasonNodeContradicts Reason = "ContradictsRecords"
	ReasonNodeCordoned    Reason = "Cordoned"
)

// What is done about a GodwitNode.
const (
	MakeNode   Do = "MakeNode"
	WriteNode  Do = "WriteNode"
	DeleteNode Do = "DeleteNode"
)

// Node is what is known of a node, and what its GodwitNode says.
type Node struct {
	Node   *corev1.Node         // nil: there is none
	Object *v1alpha1.GodwitNode // nil: there is none
	Heard  NodeHeard
	Of     NodeRecords
	Wrote  time.Time // when its object was written last; zero: this operator has not
	Now    time.Time
}

// NodeHeard is what a node has said by itself. It is hostile: only its own object has that.
type NodeHeard struct {
	Info *nodev1.NodeInfo // Up, Cordoned and the name are the controller's word; nil: it was never heard
	// Said: the node said the rest of Info, to this controller. Else that is old.
	Said bool
}

// NodeRecords are what the records have of a node.
type NodeRecords struct {
	Known   bool // else nothing is known of VMs and snapshots
	VMs     int
	Digests []string // of the snapshots that it has made, the newest first

	Judged      bool // else it is not known whether it contradicts
	Contradicts bool
}

// NextNode decides what becomes of a GodwitNode. Nothing is ever decided by it. It ends with its Node, which is
// known by its uid: the next one of that name gets another object.
func NextNode(o Node) (Do, *v1alpha1.GodwitNodeStatus) {
	switch {
	case o.Object != nil && o.Object.DeletionTimestamp != nil:
		return None, nil
	case o.Object != nil && (o.Node == nil || !slices.ContainsFunc(o.Object.OwnerReferences, o.owns)):
		return DeleteNode, nil
	case o.Heard.Info == nil || o.Node == nil || o.Node.DeletionTimestamp != nil:
		return None, nil // one that was never heard runs no godwit, as far as is known
	case o.Object == nil:
		return MakeNode, o.status(v1alpha1.GodwitNodeStatus{})
	}
	was, now := &o.Object.Status, o.status(o.Object.Status)
	since := o.Now.Sub(o.Wrote)
	switch {
	case equality.Semantic.DeepEqual(was, now), since < NodePause:
		return None, nil
	case was.Up == now.Up && was.Cordoned == now.Cordoned && was.VMs == now.VMs &&
		equality.Semantic.DeepEqual(was.Conditions, now.Conditions) && since < NodeFigures:
		return None, nil
	}
	return WriteNode, now
}

// owns reports whether an owner is the Node.
func (o Node) owns(r metav1.OwnerReference) bool {
	return r.APIVersion == "v1" && r.Kind == "Node" && r.Name == o.Node.Name && r.UID == o.Node.UID
}

// NodeOf is a new GodwitNode of a Node.
func NodeOf(n *corev1.Node) *v1alpha1.GodwitNode {
	return &v1alpha1.GodwitNode{ObjectMeta: metav1.ObjectMeta{Name: n.Name,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}}}}
}

// status is what the object is to say. What is not known stays as it was.
func (o Node) status(was v1alpha1.GodwitNodeStatus) *v1alpha1.GodwitNodeStatus {
	now, info := was.DeepCopy(), o.Heard.Info
	now.Up, now.Cordoned = info.GetUp(), info.GetCordoned() || o.Node.Spec.Unschedulable
	if o.Heard.Said || o.Object == nil {
		now.Address, now.Version = plain(info.GetAddress(), mostAddress), plain(info.GetVersion(), mostWord)
		now.CPU, now.VMMs = words(info.GetCpuClasses(), mostWords), words(info.GetVmms(), mostWords)
		now.RAMBytes = int64(min(info.GetRamBytes(), math.MaxInt64))
		free := int64(min(info.GetFreeBytes(), info.GetRamBytes(), math.MaxInt64))
		if o.Object == nil || max(free, was.FreeBytes)-min(free, was.FreeBytes) > now.RAMBytes/freePart {
			now.FreeBytes = free
		}
	}
	if o.Of.Known {
		now.VMs, now.Digests = int32(min(o.Of.VMs, math.MaxInt32)), words(o.Of.Digests, mostDigests)
	}
	status, reason, message := o.ready(was)
	meta.SetStatusCondition(&now.Conditions, metav1.Condition{Type: CondReady, Status: status, Reason: string(reason),
		Message: message, LastTransitionTime: metav1.NewTime(o.Now)})
	return now
}

// ready says whether the node takes VMs. A node that is not heard may run them all the same.
func (o Node) ready(was v1alpha1.GodwitNodeStatus) (metav1.ConditionStatus, Reason, string) {
	contradicts := o.Of.Contradicts
	if c := meta.FindStatusCondition(was.Conditions, CondReady); !o.Of.Judged && c != nil {
		contradicts = c.Reason == string(ReasonNodeContradicts)
	}
	switch {
	case !o.Heard.Info.GetUp():
		return metav1.ConditionUnknown, ReasonNodeMute, "the operator has not heard it lately: its VMs may run on"
	case contradicts:
		return metav1.ConditionFalse, ReasonNodeContradicts, "it says what the records do not bear out"
	case o.Heard.Info.GetCordoned():
		return metav1.ConditionFalse, ReasonNodeCordoned, "no VM comes to it: godwit uncordon ends that"
	case o.Node.Spec.Unschedulable:
		return metav1.ConditionFalse, ReasonNodeCordoned, "no VM comes to it: kubectl uncordon ends that"
	}
	return metav1.ConditionTrue, ReasonNodeHeard, "it takes VMs"
}

// plain is a word that is short and visible, or nothing.
func plain(s string, most int) string {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return ""
		}
	}
	if len(s) > most {
		return ""
	}
	return s
}

// words are the first of some that are short and visible, each once, in order.
func words(all []string, most int) (some []string) {
	for _, s := range all {
		if s = plain(s, mostWord); s != "" && !slices.Contains(some, s) && len(some) < most {
			some = append(some, s)
		}
	}
	slices.Sort(some)
	return some
}

// NodesOf counts what the records have of each node.
type NodesOf map[string]*nodeRecords

type nodeRecords struct {
	vms  int
	made []*nodev1.SnapshotRef
}

// Add takes a record. It keeps nothing of it but what the newest snapshots are called.
func (n NodesOf) Add(rec *nodev1.Record) {
	if owner := rec.GetOwner().GetNode(); owner != "" {
		n.of(owner).vms++
	}
	for _, s := range rec.GetSnapshots() {
		if s.GetNode() != "" {
			of := n.of(s.GetNode())
			of.made = append(of.made, &nodev1.SnapshotRef{Digest: s.GetDigest(), CreatedUnixNano: s.GetCreatedUnixNano()})
			if len(of.made) >= 2*mostDigests {
				of.made = newestOf(of.made)
			}
		}
	}
}

func (n NodesOf) of(node string) *nodeRecords {
	if n[node] == nil {
		n[node] = &nodeRecords{}
	}
	return n[node]
}

// Of answers what was counted of a node.
func (n NodesOf) Of(node string) (vms int, digests []string) {
	if n[node] == nil {
		return 0, nil
	}
	for _, s := range newestOf(n[node].made) {
		digests = append(digests, s.GetDigest())
	}
	return n[node].vms, digests
}

// newestOf are the newest of some snapshots, the newest first.
func newestOf(all []*nodev1.SnapshotRef) []*nodev1.SnapshotRef {
	slices.SortFunc(all, func(a, b *nodev1.SnapshotRef) int {
		return cmp.Or(cmp.Compare(b.GetCreatedUnixNano(), a.GetCreatedUnixNano()), cmp.Compare(a.GetDigest(), b.GetDigest()))
	})
	return all[:min(len(all), mostDigests)]
}
