package decide

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The reasons for which a VM does not begin from a snapshot.
const (
	ReasonSnapshotNotFound Reason = "SnapshotNotFound"
	ReasonSnapshotNotReady Reason = "SnapshotNotReady"
	ReasonSnapshotFailed   Reason = "SnapshotFailed"
	// ReasonSnapshotTaken is of one from which another VM has begun, which is there.
	ReasonSnapshotTaken Reason = "SnapshotTaken"
	// ReasonSnapshotGone is of one that no record has any more.
	ReasonSnapshotGone Reason = "SnapshotGone"
	// ReasonForkUnsupported is of one whose VM is there: two VMs would run from one state.
	ReasonForkUnsupported Reason = "ForkUnsupported"
)

// begins is a VM that is to begin from a snapshot, and has never had a state. It never boots: what stands in the way is
// told, and waited for.
func (o VM) begins() Action {
	if !o.Engine {
		return missing("restoreFrom")
	}
	next := o.beginning()
	if next.Do == None && next.Waits != "" {
		next.After = lookAgain // of snapshot, source and taker no watch tells here
	}
	return next
}

func (o VM) beginning() Action {
	field, f := "spec.restoreFrom: VMSnapshot "+o.Object.Spec.RestoreFrom.Name, o.From
	if f == nil {
		return wait(ReasonSnapshotNotFound, field+" does not exist in this namespace")
	}
	held, rec := f.Held, o.Record
	switch source := f.native(); {
	case rec != nil && rec.GetRestoreFrom().GetOperation() != string(f.Object.UID):
		return refuse(ReasonInvalid, field+" is another one than that which the VM is to begin from: delete the "+
			"VirtualMachine, and make it again")
	case transition.Marked(held, rec):
		return Action{Do: BeginVM, Held: held}
	case f.Object.DeletionTimestamp != nil:
		return refuse(ReasonSnapshotGone, field+" is being deleted: make the VirtualMachine again without it")
	case meta.IsStatusConditionTrue(f.Object.Status.Conditions, CondFailed):
		return refuse(ReasonSnapshotFailed, field+" has failed: make the VirtualMachine again with another one")
	case source != nil:
		_, vm := pods.Split(f.Record)
		return refuse(ReasonForkUnsupported, fmt.Sprintf("%s is of VirtualMachine %s, which is there. Two VMs never go on "+
			"from one state: delete that one first", field, vm))
	case !meta.IsStatusConditionTrue(f.Object.Status.Conditions, CondReady) || f.capturing():
		return wait(ReasonSnapshotNotReady, field+" is not Ready")
	case held == nil:
		return refuse(ReasonSnapshotGone, field+": no record has it any more, and its pages may be deleted: make the "+
			"VirtualMachine again without it")
	case held.GetHold().GetVm() != nil && f.TakerThere:
		_, vm := pods.Split(&nodev1.Record{Vm: held.GetHold().GetVm()})
		return refuse(ReasonSnapshotTaken, fmt.Sprintf("%s: VirtualMachine %s has begun from it, and is there. Two VMs "+
			"never go on from one state: delete that one first", field, vm))
	case rec != nil:
		return Action{Do: TakeSnapshot, Held: held, After: soon} // no watch tells of the mark
	}
	next := o.ensure()
	if next.Do == EnsureRecord {
		next.From = &nodev1.RestoreFrom{Vm: held.GetVm(), Operation: held.GetSnapshot().GetOperation()}
	}
	return next
}

// neverBoots says why a VM without an owner must not boot; None: it may.
func (o VM) neverBoots() Action {
	switch from := o.Object.Spec.RestoreFrom; {
	case Mode(o.Object) == v1alpha1.ModeStopped:
	case record.Begins(o.Record) && from != nil:
		return o.begins()
	case record.Begins(o.Record): // which no object can change
		return refuse(ReasonInvalid, "its record begins from a snapshot, and it has no spec.restoreFrom")
	case from != nil && o.Record.GetRestoreFrom() == nil && Mode(o.Object) == v1alpha1.ModeRunning:
		return refuse(ReasonInvalid, "spec.restoreFrom: its record was made without it: delete the VirtualMachine, and make "+
			"it again")
	}
	return Action{Do: None}
}

// Orphaned reports whether what is held is forgotten when no VMSnapshot has it: no VM needs it, or may.
func (o Snapshot) Orphaned() bool {
	if o.Held == nil {
		return false
	}
	use, lists := o.users()
	return use == "" && !lists
}

// users are why what a VM has of a held snapshot keeps it; trim: that VM lists it still, and does not need it.
func (o Snapshot) users() (use string, trim bool) {
	digest := o.Held.GetSnapshot().GetDigest()
	if o.TakerThere && o.Taker == nil {
		return "VM " + o.Held.GetHold().GetVm().GetId() + " begins from it or has, and its record is not there: put " +
			"it back from a copy, or delete that VM", false
	}
	if record.Begins(o.Taker) {
		return "a VM begins from it", false
	}
	for _, ref := range o.Taker.GetSnapshots() {
		if ref.GetDigest() == digest {
			return transition.InUse(o.Taker, digest), true
		}
	}
	return "", false
}
