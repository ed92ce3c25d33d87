package decide_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// ofNode is a node whose GodwitNode says what is known, and was not written lately.
func ofNode(t *testing.T) decide.Node {
	t.Helper()
	now := time.Unix(1e9, 0)
	o := decide.Node{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n1"}}, Now: now,
		Heard: decide.NodeHeard{Said: true, Info: &nodev1.NodeInfo{Name: "n", Up: true, Address: "n:1", Version: "v1",
			RamBytes: 64 << 30, FreeBytes: 32 << 30, CpuClasses: []string{"kvm/host-1"}, Vmms: []string{"qemu/1"}}},
		Of: decide.NodeRecords{Known: true, Judged: true, VMs: 2, Digests: []string{"sha256:2", "sha256:1"}}}
	do, status := decide.NextNode(o)
	if do != decide.MakeNode {
		t.Fatalf("a node that has said something: %s", do)
	}
	o.Object = decide.NodeOf(o.Node)
	o.Object.Status = *status
	o.Now = now.Add(time.Hour)
	return o
}

// What a GodwitNode becomes, by one thing that is known otherwise.
func TestNextNode(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decide.Node)
		want   decide.Do
		reason decide.Reason
		check  func(*v1alpha1.GodwitNodeStatus) bool
	}{
		"nothing has changed": {change: func(*decide.Node) {}, want: decide.None},
		"it is mute": {change: func(o *decide.Node) { o.Heard.Info.Up = false }, want: decide.WriteNode,
			reason: decide.ReasonNodeMute, check: func(s *v1alpha1.GodwitNodeStatus) bool { return !s.Up && s.VMs == 2 }},
		"a note alone is known, which is old": {change: func(o *decide.Node) {
			o.Heard = decide.NodeHeard{Info: &nodev1.NodeInfo{Name: "n", Up: true}}
		}, want: decide.None},
		"the Node takes no pods": {change: func(o *decide.Node) { o.Node.Spec.Unschedulable = true },
			want: decide.WriteNode, reason: decide.ReasonNodeCordoned,
			check: func(s *v1alpha1.GodwitNodeStatus) bool { return s.Cordoned && s.Up }},
		"godwit cordon": {change: func(o *decide.Node) { o.Heard.Info.Cordoned = true }, want: decide.WriteNode,
			reason: decide.ReasonNodeCordoned, check: func(s *v1alpha1.GodwitNodeStatus) bool { return s.Cordoned }},
		"it contradicts": {change: func(o *decide.Node) { o.Of.Contradicts = true }, want: decide.WriteNode,
			reason: decide.ReasonNodeContradicts},
		"a VM more": {change: func(o *decide.Node) { o.Of.VMs = 3 }, want: decide.WriteNode,
			reason: decide.ReasonNodeHeard, check: func(s *v1alpha1.GodwitNodeStatus) bool { return s.VMs == 3 }},
		"the records could not be read": {change: func(o *decide.Node) { o.Of = decide.NodeRecords{} }, want: decide.None},
		"the free bytes move a little": {change: func(o *decide.Node) { o.Heard.Info.FreeBytes -= 4 << 30 },
			want: decide.None},
		"the free bytes move": {change: func(o *decide.Node) { o.Heard.Info.FreeBytes -= 5 << 30 }, want: decide.WriteNode,
			reason: decide.ReasonNodeHeard, check: func(s *v1alpha1.GodwitNodeStatus) bool { return s.FreeBytes == 27<<30 }},
		"the free bytes move soon after a write": {change: func(o *decide.Node) {
			o.Heard.Info.FreeBytes, o.Wrote = 0, o.Now.Add(-decide.NodeFigures+1)
		}, want: decide.None},
		"a snapshot soon after a write": {change: func(o *decide.Node) {
			o.Of.Digests, o.Wrote = append(o.Of.Digests, "sha256:3"), o.Now.Add(-decide.NodeFigures+1)
		}, want: decide.None},
		"it falls silent soon after a write": {change: func(o *decide.Node) {
			o.Heard.Info.Up, o.Wrote = false, o.Now.Add(-decide.NodePause)
		}, want: decide.WriteNode, reason: decide.ReasonNodeMute},
		"it falls silent at once": {change: func(o *decide.Node) {
			o.Heard.Info.Up, o.Wrote = false, o.Now.Add(-decide.NodePause+1)
		}, want: decide.None},
		"its Node is gone":      {change: func(o *decide.Node) { o.Node = nil }, want: decide.DeleteNode},
		"its Node is made anew": {change: func(o *decide.Node) { o.Node.UID = "n2" }, want: decide.DeleteNode},
		"its Node is gone, and no one remembers it": {change: func(o *decide.Node) {
			o.Node, o.Heard = nil, decide.NodeHeard{}
		}, want: decide.DeleteNode},
		"no one remembers it": {change: func(o *decide.Node) { o.Heard = decide.NodeHeard{} }, want: decide.None},
		"its owner was taken off": {change: func(o *decide.Node) { o.Object.OwnerReferences = nil },
			want: decide.DeleteNode},
		"it is deleted": {change: func(o *decide.Node) { o.Node, o.Object.DeletionTimestamp = nil, &metav1.Time{} },
			want: decide.None},
		"it has no object and no Node": {change: func(o *decide.Node) { o.Node, o.Object = nil, nil }, want: decide.None},
		"a Node that goes gets none": {change: func(o *decide.Node) {
			o.Object, o.Node.DeletionTimestamp = nil, &metav1.Time{}
		}, want: decide.None},
		"a Node without godwit gets none": {change: func(o *decide.Node) {
			o.Object, o.Heard = nil, decide.NodeHeard{}
		}, want: decide.None},
	} {
		t.Run(name, func(t *testing.T) {
			o := ofNode(t)
			c.change(&o)
			do, status := decide.NextNode(o)
			if do != c.want {
				t.Fatalf("%s, want %s: %+v", do, c.want, status)
			}
			if c.reason == "" {
				return
			}
			ready := meta.FindStatusCondition(status.Conditions, decide.CondReady)
			if ready.Reason != string(c.reason) || (ready.Status == "True") != (c.reason == decide.ReasonNodeHeard) {
				t.Errorf("Ready is %s: %s", ready.Status, ready.Reason)
			}
			if c.check != nil && !c.check(status) {
				t.Errorf("its status is %+v", status)
			}
		})
	}
}

// A node contradicts for as long as the store of the records says so. That this could not be read is no word.
func TestNodeContradictsUntilReadOtherwise(t *testing.T) {
	o := ofNode(t)
	o.Of.Contradicts = true
	_, status := decide.NextNode(o)
	o.Object.Status = *status
	o.Of = decide.NodeRecords{}
	if do, _ := decide.NextNode(o); do != decide.None {
		t.Errorf("what could not be read: %s", do)
	}
	o.Of = decide.NodeRecords{Judged: true}
	if do, status := decide.NextNode(o); do != decide.WriteNode ||
		!meta.IsStatusConditionTrue(status.Conditions, decide.CondReady) {
		t.Errorf("what it says no more: %s, %+v", do, status)
	}
}

// hostile is all that a node can say.
func hostile() *nodev1.NodeInfo {
	n := &nodev1.NodeInfo{Name: "n", Up: true, Address: strings.Repeat("a", 2048), Version: "v1\x1b[2J\nn2",
		RamBytes: math.MaxUint64, FreeBytes: math.MaxUint64, Vms: math.MaxUint32}
	for i := range 10000 {
		n.CpuClasses = append(n.CpuClasses, fmt.Sprint("c", i/2), "a b", "\u00e9", "", strings.Repeat("c", 129))
		n.Vmms = append(n.Vmms, strings.Repeat("v", 1+i%300))
	}
	return n
}

// Whatever a node says, its object has what the schema takes, and no more.
func TestHostileNodeIsBounded(t *testing.T) {
	o := ofNode(t)
	o.Heard.Info = hostile()
	for i := range 100 {
		o.Of.Digests = append(o.Of.Digests, fmt.Sprint("sha256:", i))
	}
	_, s := decide.NextNode(o)
	if s.Address != "" || s.Version != "" || s.RAMBytes != math.MaxInt64 || s.FreeBytes != math.MaxInt64 || s.VMs != 2 {
		t.Errorf("its status is %+v", s)
	}
	for _, all := range [][]string{s.CPU, s.VMMs} {
		set := slices.Compact(slices.Clone(all))
		if len(all) != 16 || len(set) != 16 || !slices.IsSorted(all) ||
			slices.ContainsFunc(all, func(w string) bool { return w == "" || len(w) > 128 }) {
			t.Errorf("a list is %q", all)
		}
	}
	if len(s.Digests) != 32 {
		t.Errorf("%d digests", len(s.Digests))
	}
}

// Of each node the records tell how many VMs it has, and the newest snapshots that it has made.
func TestNodesOfRecords(t *testing.T) {
	of := decide.NodesOf{}
	for i := range 10 {
		rec := &nodev1.Record{Owner: &nodev1.Owner{Node: "a"}}
		for j := range 10 {
			rec.Snapshots = append(rec.Snapshots, &nodev1.SnapshotRef{Digest: fmt.Sprintf("sha256:%02d", 10*j+i), Node: "b",
				CreatedUnixNano: int64(10*j + i)})
		}
		of.Add(rec)
	}
	of.Add(&nodev1.Record{Owner: &nodev1.Owner{Digest: "sha256:1"}, Snapshots: []*nodev1.SnapshotRef{{Digest: "x"}}})
	if n, digests := of.Of("a"); n != 10 || digests != nil {
		t.Errorf("a has %d VMs, and made %q", n, digests)
	}
	if n, digests := of.Of("b"); n != 0 || len(digests) != 32 || digests[0] != "sha256:99" || digests[31] != "sha256:68" {
		t.Errorf("b has %d VMs, and made %q", n, digests)
	}
	if n, digests := of.Of("c"); n != 0 || digests != nil {
		t.Errorf("c has %d VMs, and made %q", n, digests)
	}
}
