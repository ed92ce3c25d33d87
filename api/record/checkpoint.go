package record

import (
	"fmt"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// decideCheckpoint is Decide for a Create that names a checkpoint: an explicit order to restore
// that one, whatever is newer. It restores only what the VM's record lists, and nothing while a
// node may run the VM. This node's own claim is its caller's to give up: the caller knows that
// nothing runs.
func decideCheckpoint(rec *nodev1.Record, node, digest string) (Decision, error) {
	vm := rec.GetVm().GetNamespace() + "/" + rec.GetVm().GetId()
	refuse := func(why string, args ...any) (Decision, error) {
		return Decision{}, fmt.Errorf("restore VM %s from checkpoint %s: %s: %w", vm, digest, fmt.Sprintf(why, args...),
			errdefs.ErrFailedPrecondition)
	}
	switch op, owner := rec.GetOperation(), rec.GetOwner().GetNode(); {
	case rec == nil:
		return refuse("the node keeps no records")
	case op != nil:
		return refuse("operation %s (%s) is open", op.GetId(), op.GetKind())
	case owner != "" && owner != node:
		return refuse("node %s owns the VM", owner)
	}
	for _, ref := range rec.GetSnapshots() {
		if ref.GetDigest() == digest {
			return Decision{Action: Restore, Digest: digest, Repository: ref.GetRepository()}, nil
		}
	}
	return refuse("its record does not list that snapshot: it was deleted, or the VM is another one by now")
}
