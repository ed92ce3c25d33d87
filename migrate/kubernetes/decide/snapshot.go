package decide

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// lookAgain is for what no watch tells of.
const lookAgain = 5 * time.Second

// soon is for what has just been done to an object that no watch tells of.
const soon = 100 * time.Millisecond

// Snapshot is what was observed of a VMSnapshot.
type Snapshot struct {
	Object *v1alpha1.VMSnapshot
	VM     *v1alpha1.VirtualMachine // that vmRef names; nil: there is none
	Pod    *corev1.Pod              // that podRef names, or that the record names; nil: there is none
	Record *nodev1.Record           // of the VM; nil: there is none
	// Held is the snapshot where the record of its VM was removed; nil: it is in none. Taker is the record of the VM that
	// has begun from it, nil: it has none. TakerThere: that VM is there, or its record is.
	Held       *nodev1.Owed
	Taker      *nodev1.Record
	TakerThere bool
	Named      *v1alpha1.VMSnapshotContent
	// Labelled are the work orders that have the snapshot's uid as a label.
	Labelled []v1alpha1.VMSnapshotContent
	Class    Class // that it names, where it has no work order yet
	Claimed  bool  // a node has the claim of its capture
	Engine   bool  // orders reach nodes
	Unread   error
}

// orders are those of this snapshot: by label and by what they say of themselves, never by a name alone.
func (o Snapshot) orders() (all []*v1alpha1.VMSnapshotContent) {
	for i := range o.Labelled {
		if o.Labelled[i].Spec.SnapshotRef.UID == string(o.Object.UID) {
			all = append(all, &o.Labelled[i])
		}
	}
	if o.Named != nil && o.Named.Spec.SnapshotRef.UID == string(o.Object.UID) &&
		!slices.ContainsFunc(all, func(c *v1alpha1.VMSnapshotContent) bool { return c.UID == o.Named.UID }) {
		all = append(all, o.Named)
	}
	return all
}

// Nodes are those that have a work order of this snapshot.
func (o Snapshot) Nodes() (all []string) {
	for _, c := range o.orders() {
		if node := c.Spec.Source.NodeName; !slices.Contains(all, node) {
			all = append(all, node)
		}
	}
	return all
}

// listed is the snapshot of this object by the records; nil: they do not have it.
func (o Snapshot) listed() *nodev1.SnapshotRef {
	return cmp.Or(o.native(), o.Held.GetSnapshot())
}

// native is the snapshot in the record of the VM that it was taken of; nil: it is not there.
func (o Snapshot) native() *nodev1.SnapshotRef {
	for _, ref := range o.Record.GetSnapshots() {
		if ref.GetOperation() == string(o.Object.UID) && ref.GetOrigin() == nil {
			return ref
		}
	}
	return nil
}

// uid is that of the VM which the snapshot was taken of.
func (o Snapshot) uid() string {
	if o.native() == nil && o.Held != nil {
		return o.Held.GetUid()
	}
	return o.Record.GetUid()
}

// capturing reports whether the records have an operation of this snapshot that is open.
func (o Snapshot) capturing() bool { return o.Record.GetOperation().GetId() == string(o.Object.UID) }

// NextSnapshot decides what is done next of a VMSnapshot.
func NextSnapshot(o Snapshot) Action {
	snap := o.Object
	if o.Unread != nil {
		return wait(ReasonRecordsUnavailable, o.Unread.Error())
	}
	all := o.orders()
	switch {
	case snap.DeletionTimestamp != nil:
		return o.end(all)
	case !slices.Contains(snap.Finalizers, FinalizerSnapshot):
		return Action{Do: AddFinalizer}
	case meta.IsStatusConditionTrue(snap.Status.Conditions, CondFailed):
		return Action{Do: None}
	case o.Named != nil && o.Named.Spec.SnapshotRef.UID != string(snap.UID):
		return refuse(ReasonContentConflict, "VMSnapshotContent "+o.Named.Name+" is another snapshot's")
	case len(all) > 1:
		next := wait(ReasonAmbiguous, fmt.Sprintf("it has %d work orders, %s and %s: delete those that are not its own",
			len(all), all[0].Name, all[1].Name))
		next.After = lookAgain
		return next
	case len(all) == 1:
		return o.follow(all[0])
	case o.listed() != nil: // there is nothing left to order
		return o.tell()
	}
	return o.order()
}

// follow decides by the work order. What it says counts once the record says so too.
func (o Snapshot) follow(c *v1alpha1.VMSnapshotContent) Action {
	if c.DeletionTimestamp != nil { // by somebody else: it is ordered again
		if !o.capturing() && !o.Claimed && slices.Contains(c.Finalizers, FinalizerSnapshot) {
			return Action{Do: ReleaseContent, Content: c}
		}
		next := wait(ReasonClaimed, "its work order is being deleted")
		next.After = lookAgain
		return next
	}
	if c.Labels[LabelSnapshotUID] != string(o.Object.UID) || c.Labels[LabelNode] != NodeLabel(c.Spec.Source.NodeName) {
		return Action{Do: AdoptContent, Content: c}
	}
	if f := meta.FindStatusCondition(c.Status.Conditions, CondFailed); f != nil && f.Status == metav1.ConditionTrue {
		return refuse(Reason(f.Reason), f.Message)
	}
	switch ref := o.listed(); {
	case ref == nil && meta.IsStatusConditionTrue(c.Status.Conditions, CondReady):
		return wait(ReasonNotListed, "the record of its VM does not list snapshot "+c.Status.Digest)
	case ref == nil:
		why, message := ReasonOperation, "node "+c.Spec.Source.NodeName+" has the order"
		if said := meta.FindStatusCondition(c.Status.Conditions, CondReady); said != nil {
			why, message = Reason(said.Reason), said.Message
		}
		return wait(why, message)
	case meta.IsStatusConditionTrue(c.Status.Conditions, CondReady) && ref.GetDigest() != c.Status.Digest:
		return wait(ReasonNotListed, fmt.Sprintf("the record lists snapshot %s, and node %s says %s", ref.GetDigest(),
			c.Spec.Source.NodeName, c.Status.Digest))
	case c.Spec.Repository != "" && ref.GetRepository() != c.Spec.Repository+"/"+o.uid():
		// as a node of an earlier release does, which reads no place in an order
		return refuse(ReasonElsewhere, fmt.Sprintf("node %s has put it into %s, and not below %s: upgrade the node, and "+
			"make another VMSnapshot", c.Spec.Source.NodeName, ref.GetRepository(), c.Spec.Repository))
	case !meta.IsStatusConditionTrue(c.Status.Conditions, CondReady):
		return wait(ReasonOperation, "node "+c.Spec.Source.NodeName+" has not said so yet")
	}
	return o.tell()
}

// order makes the work order, once the pod of the source has a node. Until then it waits, and nothing has failed.
func (o Snapshot) order() Action {
	snap, from := o.Object, o.Object.Spec.Source
	switch {
	case from.VMRef != nil && o.VM == nil:
		return wait(ReasonSourceNotFound, "there is no VirtualMachine "+from.VMRef.Name)
	case from.VMRef != nil && from.VMRef.UID != "" && from.VMRef.UID != string(o.VM.UID):
		return refuse(ReasonStaleSource, fmt.Sprintf("VirtualMachine %s is another one by now: its uid is %s",
			from.VMRef.Name, o.VM.UID))
	case from.VMRef != nil && o.Pod == nil && captureOnly(o.VM.Spec.Template.Labels) && Mode(o.VM) == v1alpha1.ModeStopped:
		return wait(ReasonNoNode, "VirtualMachine "+from.VMRef.Name+" is stopped: start it")
	case from.VMRef != nil && o.Pod == nil:
		return wait(ReasonNoNode, "VirtualMachine "+from.VMRef.Name+" runs in no pod")
	case from.PodRef != nil:
		if why, message := source(o.Pod, snap.Namespace, from.PodRef.Name, from.PodRef.UID); why != "" {
			return refuse(why, message)
		}
		if o.Pod.Labels[pods.LabelVM] == "" {
			return refuse(ReasonInvalid, "pod "+o.Pod.Name+" is not that of a VirtualMachine")
		}
	}
	switch {
	case o.Pod.Spec.NodeName == "":
		return wait(ReasonNoNode, "pod "+o.Pod.Name+" has no node yet")
	case !pods.Names(o.Record, o.Pod):
		return wait(ReasonNoNode, "the record does not name pod "+o.Pod.Name)
	}
	next := o.Class.Waits()
	if next.Waits == "" {
		next = o.Class.orders(o.Record)
	}
	if next.Waits == "" {
		next = Action{Do: MakeContent, Content: content(snap, o.Pod, o.Class.Object, o.Record)}
	}
	return next
}

// content is the work order. Its labels are the operator's word of which VM is meant; its spec is what the node checks.
func content(snap *v1alpha1.VMSnapshot, pod *corev1.Pod, class *v1alpha1.VMSnapshotClass,
	rec *nodev1.Record) *v1alpha1.VMSnapshotContent {
	keys := Keys{rec.GetSealed(), rec.GetSigned()}
	if class != nil {
		keys = KeysOf(class)
	}
	c := &v1alpha1.VMSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: OrderName(snap.UID), Finalizers: []string{FinalizerSnapshot},
			Labels: map[string]string{LabelNode: NodeLabel(pod.Spec.NodeName), LabelSnapshotUID: string(snap.UID),
				pods.LabelVM: pod.Labels[pods.LabelVM], pods.LabelRecordUID: pod.Labels[pods.LabelRecordUID]}},
		Spec: v1alpha1.VMSnapshotContentSpec{
			SnapshotRef: v1alpha1.NamespacedRef{Namespace: snap.Namespace, Name: snap.Name, UID: string(snap.UID)},
			Source: v1alpha1.ContentSource{NodeName: pod.Spec.NodeName, PodRef: v1alpha1.NamespacedRef{
				Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}},
			Sealed: keys.Seal, Signed: keys.Sign,
		},
	}
	if class != nil {
		c.Spec.Repository = class.Spec.Repository
	}
	return c
}

// end removes the work order, has the record owe the snapshot, and lets the object go, in this order.
func (o Snapshot) end(all []*v1alpha1.VMSnapshotContent) Action {
	for _, c := range all {
		if c.DeletionTimestamp == nil {
			return Action{Do: DeleteContent, Content: c}
		}
	}
	if o.capturing() || o.Claimed {
		next := wait(ReasonClaimed, "its node ends the capture first")
		next.After = lookAgain
		return next
	}
	if next := o.giveUp(); next.Do != None || next.Waits != "" {
		return next
	}
	for _, c := range all {
		if slices.Contains(c.Finalizers, FinalizerSnapshot) {
			return Action{Do: ReleaseContent, Content: c}
		}
	}
	if slices.Contains(o.Object.Finalizers, FinalizerSnapshot) {
		return Action{Do: DropFinalizer}
	}
	return Action{Do: None}
}

// giveUp has the records owe the snapshot. One that another VM has begun from is in the list of that VM, too.
func (o Snapshot) giveUp() Action {
	retain := o.Object.Spec.DeletionPolicy == v1alpha1.DeletionRetain
	switch ref := o.native(); {
	case ref != nil && retain:
		return Action{Do: None}
	case ref != nil:
		if use := transition.InUse(o.Record, ref.GetDigest()); use != "" {
			return wait(ReasonInUse, use)
		}
		return Action{Do: TrimSnapshot, Digest: ref.GetDigest(), Record: o.Record}
	case o.Held == nil:
		return Action{Do: None}
	}
	use, trim := o.users()
	if use != "" {
		next := wait(ReasonInUse, use)
		next.After = lookAgain
		return next
	}
	if trim {
		return Action{Do: TrimSnapshot, Digest: o.Held.GetSnapshot().GetDigest(), Record: o.Taker,
			After: soon} // no watch tells of that record
	}
	return Action{Do: ReleaseSnapshot, Held: o.Held, Keep: retain}
}

// source is what the status says of what the snapshot is taken of: the VM of podRef, and the images that run. They are
// those of the pod that is captured. What became of it later is not in the snapshot.
func (o Snapshot) source(next Action) (vm string, images map[string]string) {
	old, c := o.Object.Status, next.Content
	if all := o.orders(); len(all) == 1 {
		c = all[0]
	}
	vm, images = old.VMName, old.Images
	if c == nil {
		return vm, images
	}
	if o.Object.Spec.Source.PodRef != nil {
		vm = cmp.Or(vm, c.Labels[pods.LabelVM])
	}
	taken := old.Digest != "" && len(images) > 0
	if o.Pod != nil && string(o.Pod.UID) == c.Spec.Source.PodRef.UID && !taken {
		if all := pods.Images(o.Pod); len(all) > 0 {
			images = all
		}
	}
	return vm, images
}

// SnapshotStatus is what the status says. Ready is the record's word. Failed stays.
func SnapshotStatus(o Snapshot, next Action) v1alpha1.VMSnapshotStatus {
	old := o.Object.Status
	settles := next.Waits == "" && (next.Do == AddFinalizer || o.Object.DeletionTimestamp != nil)
	if o.Unread != nil || settles || meta.IsStatusConditionTrue(old.Conditions, CondFailed) {
		return old
	}
	s := v1alpha1.VMSnapshotStatus{ObservedGeneration: o.Object.Generation,
		BoundSnapshotContentName: old.BoundSnapshotContentName}
	for _, c := range old.Conditions {
		if c.Type == CondReady || c.Type == CondTold {
			s.Conditions = append(s.Conditions, c)
		}
	}
	if all := o.orders(); len(all) == 1 {
		s.BoundSnapshotContentName = all[0].Name
	}
	s.VMName, s.Images = o.source(next)
	toldStatus(&s, next)
	switch ref := o.listed(); {
	case next.Refused:
		failed(&s.Conditions, s.ObservedGeneration, next.Waits, next.Message)
	case ref != nil && next.Waits == "" && (next.Do == None || next.Do == TellWorkload):
		if s.BoundSnapshotContentName == "" {
			s.BoundSnapshotContentName = OrderName(o.Object.UID)
		}
		s.Digest, s.Bytes, s.CompletionTime = ref.GetDigest(), int64(ref.GetBytes()), unix(ref.GetCreatedUnixNano())
		setCondition(&s.Conditions, s.ObservedGeneration, CondReady, metav1.ConditionTrue, ReasonSnapshotReady, "")
	case next.Waits != "":
		setCondition(&s.Conditions, s.ObservedGeneration, CondReady, metav1.ConditionFalse, next.Waits, next.Message)
	default:
		setCondition(&s.Conditions, s.ObservedGeneration, CondReady, metav1.ConditionFalse, ReasonOperation, "")
	}
	return s
}
