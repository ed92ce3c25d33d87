package decide

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/migrate/kubernetes/pods"
)

// mine reports whether the record is this VM's. One that runs in a pod of this object shows it, too: builds before took
// the uid out of the status of a member that had lost its owner.
func (o VM) mine() bool {
	if pods.Has(o.Object, o.Set, o.Record) {
		return true
	}
	own, _ := o.own()
	return pods.Fits(o.Object.Name, o.Record.GetUid()) &&
		slices.ContainsFunc(own, func(p corev1.Pod) bool { return o.names(&p) })
}

// setLives reports whether the record hangs on a set that is there, is not being deleted, and still names the member:
// the next object of the member has it. It does not matter whether this object still has its owner.
func (o VM) setLives() bool {
	if o.Set == nil || o.Set.DeletionTimestamp != nil {
		return false
	}
	member := pods.Listed(o.Object.Name, o.Set)
	return member != "" && pods.HangsOn(o.Set.UID, member, o.Record.GetUid())
}
