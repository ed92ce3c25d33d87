package controller

import (
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// guarded refuses a node the deletion of a guarded snapshot, and the end of its guard. The copy of the store knew it,
// and a node has had the VM since by its word alone.
func guarded(was *nodev1.Record, change transition.Change) error {
	var ref *nodev1.SnapshotRef
	for _, now := range change.Record.GetSnapshots() {
		if !now.GetGuarded() && transition.Guarded(was, now.GetDigest()) != nil {
			ref = now
		}
	}
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
	return fmt.Errorf("delete or unpin snapshot %s of VM %s/%s: %s: %w", ref.GetDigest(), was.GetVm().GetNamespace(),
		was.GetVm().GetId(), byWord, errdefs.ErrPermissionDenied)
}

// GuardedWake refuses that such a node fetches one of these snapshots, where no node fetches VMs of others. An empty
// digest names none of them.
func (p Policy) GuardedWake(was *nodev1.Record, digest string) error {
	if p.Pull != PullController || digest == "" || transition.Guarded(was, digest) == nil {
		return nil
	}
	return fmt.Errorf("wake VM %s/%s from snapshot %s: move.pull is %q, and %s: %w", was.GetVm().GetNamespace(),
		was.GetVm().GetId(), digest, p.Pull, byWord, errdefs.ErrPermissionDenied)
}

const byWord = "since the store was put back from a copy, a node has had the VM by its own word alone. To go on, " +
	"order it on the controller"
