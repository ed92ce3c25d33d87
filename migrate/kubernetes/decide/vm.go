package decide

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// FinalizerVM keeps a VirtualMachine until its pod and its record are gone.
const FinalizerVM = "godwit.dev/vm"

// LabelFor of a VMOperation is the uid of the VM whose own wish it follows; an order of a person has none.
const LabelFor = "godwit.dev/for"

// AnnotationGeneration of such an operation is the generation of the VM that asked for it.
const AnnotationGeneration = "godwit.dev/for-generation"

// VM is what was observed of a VirtualMachine.
type VM struct {
	Object *v1alpha1.VirtualMachine
	Record *nodev1.Record      // nil: there is none
	Closed []*nodev1.Operation // of the record, the oldest first
	// Unread is why record, pods or orders could not be read. Nothing is decided then: what was not read may be there.
	Unread error
	Pods   []corev1.Pod // with the VM's label, also those of an object that had its name before
	Orders []v1alpha1.VMOperation
	// Set is the one that the VM may be a member of: by its owner, or by its record. nil: there is none.
	Set      *v1alpha1.VirtualMachineSet
	MainNode string // of a member that is not the main one: where the record of the main one is; empty: nowhere yet
	Fenced   bool   // somebody vouches that the node which has the VM (InHand) runs nothing any more
	// NoSource is that of the source of a move, too, which holds the VM as it was at the switch-over.
	NoSource bool
	Cordoned bool // the node that the VM is wanted on takes no pods

	Images   map[string]string // as in pods.Input; as they were written down while the VM ran
	Class    Class             // of a VM without a record
	Grace    int64             // as in pods.Input; of a VM whose pod may be made now
	From     *Snapshot         // that it is to begin from, of a VM that has not; nil: there is none
	Running  map[string]string // images of the pod that the record names; empty: it does not tell all of them
	Template string            // that the VM booted from, as it was written down while it ran; empty: not known
	// Addresses of the VM, as they were written down while it ran; and how its next pod asks for them.
	Addresses []string
	// AddressesOf is the pod in which they were seen.
	AddressesOf types.UID
	Ask         []pods.AddressAnnotation
	Holders     []string
	CPU         string
	Engine      bool // orders can be driven
	OnStop      bool
	Now         time.Time
}

// NextVM decides what is done next of a VM.
func NextVM(o VM) Action {
	vm, rec := o.Object, o.Record
	deleting := vm.DeletionTimestamp != nil
	switch {
	case o.Unread != nil:
		return wait(ReasonRecordsUnavailable, o.Unread.Error())
	case deleting && !slices.Contains(vm.Finalizers, FinalizerVM):
		return Action{Do: None}
	case pods.IsSandboxRecord(pods.RecordID(vm)): // it would take the record of a Sandbox, or end it
		if deleting {
			return Action{Do: DropFinalizer}
		}
		return refuse(ReasonInvalid, "its name is one of the VMs of Sandboxes: use another name")
	case !deleting && !slices.Contains(vm.Finalizers, FinalizerVM):
		return Action{Do: AddFinalizer} // also where somebody has stripped it
	case rec != nil && !o.mine():
		return o.foreign(deleting)
	case deleting:
		return o.end()
	}
	for _, first := range []Action{o.evicted(), o.gate(), o.leftover(), o.note(), o.lost()} {
		if first.Do != None || first.Waits != "" {
			return first
		}
	}
	return o.stranded(o.goesOn())
}

// goesOn is a VM that its node can do something of.
func (o VM) goesOn() Action {
	rec := o.Record
	switch op := rec.GetOperation(); {
	case rec == nil:
		return o.new()
	case op != nil && (!o.slept() || Mode(o.Object) != v1alpha1.ModeRunning):
		return o.under(op)
	}
	if order := o.openOrder(); order != nil {
		return o.waitsFor(order)
	}
	switch {
	case rec.GetOwner().GetNode() != "":
		return o.runs()
	case rec.GetOwner().GetDigest() != "":
		return o.sleeps()
	}
	return o.free()
}

// Mode is what a VM should be; by default it runs.
func Mode(vm *v1alpha1.VirtualMachine) v1alpha1.OperatingMode {
	return cmp.Or(vm.Spec.OperatingMode, v1alpha1.ModeRunning)
}

// own are the pods of this object; the others are of one that had its name before.
func (o VM) own() (own, others []corev1.Pod) {
	for _, pod := range o.Pods {
		if metav1.IsControlledBy(&pod, o.Object) {
			own = append(own, pod)
		} else {
			others = append(others, pod)
		}
	}
	return own, others
}

func alive(all []corev1.Pod) *corev1.Pod {
	for i := range all {
		if !pods.Ended(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

// foreign is a name whose record is another VM's: one that had the name before, and was deleted without its finalizer.
// Only a person may give its state up.
func (o VM) foreign(deleting bool) Action {
	rec := o.Record
	own, others := o.own()
	if deleting {
		if len(own) > 0 {
			return o.deletePod(&own[0])
		}
		return Action{Do: DropFinalizer}
	}
	if pod := alive(others); pod != nil {
		return wait(ReasonPodsAlive, fmt.Sprintf("pod %s of a VM that had this name before is there", pod.Name))
	}
	if rec.GetOperation() == nil && rec.GetOwner().GetNode() == "" && rec.GetOwner().GetDigest() == "" &&
		len(rec.GetSnapshots()) == 0 && !record.IsLost(rec) {
		return Action{Do: RemoveRecord}
	}
	return refuse(ReasonRecordOfAnother, fmt.Sprintf("VMRecord %s is of the VM %s, which had this name before: use "+
		"another name, or remove that VM with its snapshots", pods.RecordID(o.Object), rec.GetUid()))
}

// evicted has a VM that is to sleep at an eviction stay asleep. Its budget was taken: the pod ends already.
func (o VM) evicted() Action {
	sleeps := o.Object.Spec.Eviction.Strategy == v1alpha1.EvictionHibernate
	if !sleeps || Mode(o.Object) != v1alpha1.ModeRunning || !o.OnStop {
		return Action{Do: None}
	}
	own, _ := o.own()
	for i := range own {
		if pod := &own[i]; pod.DeletionTimestamp != nil && isTrue(pod, corev1.DisruptionTarget) && o.names(pod) {
			return Action{Do: SetMode}
		}
	}
	return Action{Do: None}
}

// hadState reports whether the VM ran or slept when its record was seen last, and the record is gone now. The record
// was taken away by force: until the object goes, only the operator removes it.
func (o VM) hadState() bool {
	s := o.Object.Status
	return o.Record == nil && pods.Claims(o.Object, s.RecordUID) && s.Owner != (v1alpha1.VMOwner{})
}

// bereft is a VM whose record was taken away. A boot would begin from nothing, and its memory may be there.
func (o VM) bereft() Action {
	s := o.Object.Status
	was := "ran on node " + s.Owner.Node
	if s.Owner.Digest != "" {
		was = "slept in snapshot " + s.Owner.Digest
	}
	return refuse(ReasonRecordMissing, fmt.Sprintf("VMRecord %s is gone, and the VM %s: put the record back from a copy, "+
		"or delete the VirtualMachine and make it again for a boot", pods.RecordID(o.Object), was))
}

// new is a VM without a record.
func (o VM) new() Action {
	if o.hadState() {
		return o.bereft()
	}
	if pod := alive(o.Pods); pod != nil {
		// Each pod is made after the record. What it runs is not known.
		return refuse(ReasonRecordMissing, fmt.Sprintf("pod %s is there, and the VM has no record: end the pod for a boot",
			pod.Name))
	}
	switch Mode(o.Object) {
	case v1alpha1.ModeStopped:
		return Action{Do: None}
	case v1alpha1.ModeHibernated:
		if o.Object.Spec.RestoreFrom == nil {
			return wait(ReasonNotHibernated, "it never ran, so that there is no state to keep")
		}
	}
	if o.Object.Spec.RestoreFrom != nil {
		return o.begins()
	}
	return o.ensure()
}

// ensure makes the record of a VM.
func (o VM) ensure() Action {
	if next := o.Class.Waits(); next.Waits != "" {
		return next
	}
	uids := []string{string(o.Object.UID)}
	if member := pods.Member(o.Object, o.Set); member != "" {
		uids = pods.MemberUIDs(o.Set.UID, member)
	} else if owner := pods.SetOwner(o.Object); owner != nil {
		return refuse(ReasonInvalid, fmt.Sprintf("its owner is VirtualMachineSet %s with uid %s, and VM %s is no member of "+
			"it: take that owner off", owner.Name, owner.UID, o.Object.Name))
	}
	return Action{Do: EnsureRecord, UIDs: uids, Class: o.Class.Object}
}

// runs is a VM that a node has, with nothing at work on it.
func (o VM) runs() Action {
	vm, rec, node := o.Object, o.Record, o.Record.GetOwner().GetNode()
	own, _ := o.own()
	current := slices.IndexFunc(own, func(p corev1.Pod) bool { return o.names(&p) })
	if done := ended(own, rec.GetGeneration()); done != nil && !o.names(done) {
		return o.deletePod(done)
	}
	if current < 0 {
		// A forced delete takes the object only: the node may run the VM, and the record fences.
		return wait(ReasonNodeUnreachable, fmt.Sprintf("node %s has the VM, and its pod is gone", node))
	}
	switch Mode(vm) {
	case v1alpha1.ModeHibernated:
		return o.order(v1alpha1.KindHibernate, "")
	case v1alpha1.ModeStopped:
		return o.deletePod(&own[current])
	}
	if next := o.failedAlone(&own[current]); next.Do != None {
		return next
	}
	switch wish := vm.Spec.NodeName; {
	case wish == "", wish == node:
	case o.Cordoned: // as after a drain of it. A move would wait for it, and the VM would not be Ready
		return wait(ReasonUnschedulable, fmt.Sprintf("spec.nodeName: node %s is cordoned, and the VM moves there once it is "+
			"not", wish))
	default:
		return o.order(v1alpha1.KindMigrate, vm.Spec.NodeName)
	}
	return Action{Do: None}
}

// sleeps is a VM whose state is a snapshot.
func (o VM) sleeps() Action {
	own, _ := o.own()
	if done := ended(own, o.Record.GetGeneration()+1); done != nil {
		return o.deletePod(done)
	}
	switch Mode(o.Object) {
	case v1alpha1.ModeHibernated:
		return Action{Do: None}
	case v1alpha1.ModeStopped:
		return wait(ReasonStateKept, "it sleeps: Stopped ends a VM that runs")
	}
	return o.order(v1alpha1.KindWake, o.wish())
}

// free is a VM without an owner: it boots, boots again, or has ended.
func (o VM) free() Action {
	vm, rec := o.Object, o.Record
	if record.IsLost(rec) {
		return refuse(ReasonLost, record.LostText(rec)+". These are commands of its nodes")
	}
	if next := o.neverBoots(); next.Do != None || next.Waits != "" {
		return next
	}
	own, others := o.own()
	if pod := alive(others); pod != nil {
		return wait(ReasonPodsAlive, fmt.Sprintf("pod %s of a VM that had this name before is there", pod.Name))
	}
	if pod := alive(own); pod != nil {
		switch {
		case Mode(vm) == v1alpha1.ModeStopped:
			return o.deletePod(pod)
		case pods.Generation(pod) <= rec.GetGeneration():
			return wait(ReasonPodsAlive, fmt.Sprintf("pod %s, whose VM has ended, is there", pod.Name))
		case o.outdated(pod):
			return o.deletePod(pod)
		}
		return wait(ReasonStarting, Unscheduled(pod))
	}
	if Mode(vm) != v1alpha1.ModeRunning {
		return o.forgets(own)
	}
	if last := newest(own); last != nil {
		return o.again(own, last)
	}
	return o.makePod()
}

// outdated reports whether a pod for a boot has no node yet, and the VM another template by now.
func (o VM) outdated(pod *corev1.Pod) bool {
	of := pod.Labels[pods.LabelTemplate]
	wanted, err := pods.Template(o.Object)
	return err == nil && of != "" && of != wanted && pod.Spec.NodeName == ""
}

// again decides by the template's rule whether a VM that has ended by itself boots again.
func (o VM) again(own []corev1.Pod, last *corev1.Pod) Action {
	rule := o.Object.Spec.Template.Spec.RestartPolicy
	failed := last.Status.Phase == corev1.PodFailed
	if next := o.failedAlone(last); next.Do != None {
		return next
	}
	if rule == corev1.RestartPolicyNever || rule == corev1.RestartPolicyOnFailure && !failed {
		return Action{Do: None, Waits: ReasonEnded}
	}
	if left := backOff(int(min(o.Record.GetGeneration(), 6))) - o.Now.Sub(last.CreationTimestamp.Time); left > 0 {
		return Action{Do: None, Waits: ReasonBackOff, After: left,
			Message: fmt.Sprintf("pod %s has ended: the VM boots again in a while", last.Name)}
	}
	return o.deletePod(&own[0])
}

func newest(all []corev1.Pod) (last *corev1.Pod) {
	for i := range all {
		if last == nil || last.CreationTimestamp.Before(&all[i].CreationTimestamp) {
			last = &all[i]
		}
	}
	return last
}

// ended finds a pod of a generation before whose VM went on elsewhere.
func ended(own []corev1.Pod, before uint64) *corev1.Pod {
	for i := range own {
		if g := pods.Generation(&own[i]); pods.Ended(&own[i]) && g < before && own[i].DeletionTimestamp == nil {
			return &own[i]
		}
	}
	return nil
}

// deletePod deletes a pod once; what holds it afterwards is its shim.
func (o VM) deletePod(pod *corev1.Pod) Action {
	if pod.DeletionTimestamp != nil {
		return wait(ReasonPodsAlive, fmt.Sprintf("pod %s ends", pod.Name))
	}
	return Action{Do: DeletePod, Pod: pod}
}

func missing(what string) Action {
	return refuse(ReasonEngineMissing, what+": this operator has no engine for operations yet")
}

// Unscheduled is why a pod has no node; empty: the scheduler has not said.
func Unscheduled(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("pod %s: %s", pod.Name, c.Message)
		}
	}
	return ""
}
