package decide

import (
	"slices"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// MemberEnd is what was observed of a record that hangs on a set, uncached: the sets first.
type MemberEnd struct {
	Record *nodev1.Record
	Sets   []v1alpha1.VirtualMachineSet // of its namespace
	VM     *v1alpha1.VirtualMachine     // of its name; nil: there is none
}

// NextMemberEnd decides whether the record of a member ends: no object is left that could have it. The VM sleeps or has
// ended, its object is gone, and its set is gone or names the member no more. A VM that is there ends its own.
func NextMemberEnd(o MemberEnd) Action {
	rec := o.Record
	if rec == nil || !OfMember(rec) || rec.GetOwner().GetNode() != "" || rec.GetOperation() != nil {
		return Action{Do: None}
	}
	_, name := pods.Split(rec)
	for i := range o.Sets {
		if member := pods.Listed(name, &o.Sets[i]); member != "" && pods.HangsOn(o.Sets[i].UID, member, rec.GetUid()) {
			return Action{Do: None}
		}
	}
	if o.VM != nil && !o.madeSince() {
		return Action{Do: None}
	}
	return Action{Do: RemoveRecord}
}

// OfMember reports whether a record is of a member of a set, or was: no other one has such a uid.
func OfMember(rec *nodev1.Record) bool {
	_, name := pods.Split(rec)
	return rec.GetMadeBy() == "" && !pods.OfSandbox(rec) && pods.Fits(name, rec.GetUid())
}

// madeSince reports whether the VM of that name was made for another set, which has the name of the one that is gone.
// It is younger than its set, so it was never a member of the other one.
func (o MemberEnd) madeSince() bool {
	return !pods.Claims(o.VM, o.Record.GetUid()) &&
		slices.ContainsFunc(o.Sets, func(set v1alpha1.VirtualMachineSet) bool {
			return pods.Member(o.VM, &set) != "" && !o.VM.CreationTimestamp.Before(&set.CreationTimestamp)
		})
}
