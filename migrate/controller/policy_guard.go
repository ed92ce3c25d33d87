package controller

import (
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// guarded refuses that a node which has a VM by its word alone does away with what the copy of the store knew of it.
func guarded(was *nodev1.Record, change transition.Change) error {
	var ref *nodev1.SnapshotRef
	for _, o := range change.PendingDeletions {
		if o.GetSnapshot().GetGuarded() {
			ref = o.GetSnapshot()
		}
	}
	if change.Record == nil { // nothing would name them
		ref = transition.Guarded(was, "")
	}
	if ref == nil {
		return nil
	}
	return fmt.Errorf("delete snapshot %s of VM %s/%s: %s: %w", ref.GetDigest(), was.GetVm().GetNamespace(),
		was.GetVm().GetId(), byWord(was), errdefs.ErrPermissionDenied)
}

// GuardedWake refuses that such a node fetches one of these snapshots, where no node fetches VMs of others. An empty
// digest names none of them.
func (p Policy) GuardedWake(was *nodev1.Record, digest string) error {
	if p.Pull != PullController || digest == "" || transition.Guarded(was, digest) == nil {
		return nil
	}
	return fmt.Errorf("wake VM %s/%s from snapshot %s: move.pull is %q, and %s: %w", was.GetVm().GetNamespace(),
		was.GetVm().GetId(), digest, p.Pull, byWord(was), errdefs.ErrPermissionDenied)
}

func byWord(rec *nodev1.Record) string {
	return fmt.Sprintf("since the store was put back from a copy, node %s has the VM by its own word alone. To go on, "+
		"order it on the controller", transition.Home(rec))
}
