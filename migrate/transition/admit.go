package transition

import (
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// admit judges an operation by the owner, and fills in what a wake restores.
func admit(rec *nodev1.Record, op *nodev1.Operation, req *nodev1.OpenRequest, call string) error {
	owner, force := rec.GetOwner(), req.GetForceDigest()
	if op.GetKind() != nodev1.Kind_KIND_WAKE {
		if owner.GetNode() == "" || owner.GetNode() != op.GetSource() {
			return held(rec, call)
		}
		return nil
	}
	lost := owner.GetNode() != "" && InHand(rec) == req.GetLostNode()
	if owner.GetNode() != "" && !lost {
		return held(rec, call) // force too: the node may run it
	}
	if owner.GetDigest() == "" && (force == "" || !known(rec, force)) {
		return held(rec, call)
	}
	if op.GetDigest() == "" {
		op.Digest = owner.GetDigest()
	}
	forced := force != "" && force == op.GetDigest()
	if force != "" && !forced {
		return fmt.Errorf("%s: forced digest %s is not the wanted %s: %w", call, force, op.GetDigest(),
			errdefs.ErrInvalidArgument)
	}
	if op.GetDigest() != owner.GetDigest() && !forced {
		return fmt.Errorf("%s: the VM's newest state is %s, not %s: %w", call, owner.GetDigest(), op.GetDigest(),
			errdefs.ErrFailedPrecondition)
	}
	if slices.Contains(rec.GetSpent(), op.GetDigest()) && !forced {
		return fmt.Errorf("%s: snapshot %s is spent: %w", call, op.GetDigest(), errdefs.ErrFailedPrecondition)
	}
	locate(rec, op)
	op.Note = note(rec, op)
	return nil
}

// note says what is given up by a wake that does not restore the newest state.
func note(rec *nodev1.Record, op *nodev1.Operation) string {
	owner := rec.GetOwner()
	if op.GetDigest() == owner.GetDigest() {
		return ""
	}
	text := "it is not the VM's newest state"
	for _, ref := range rec.GetSnapshots() {
		if ref.GetDigest() == op.GetDigest() {
			text = "the state is that of " + time.Unix(0, ref.GetCreatedUnixNano()).UTC().Format(time.RFC3339)
		}
	}
	switch {
	case owner.GetNode() != "":
		return text + "; what the VM did since on node " + owner.GetNode() + " is given up with that node"
	case owner.GetDigest() != "":
		return text + "; the newer one, snapshot " + owner.GetDigest() + ", stays until the retention rule deletes it"
	}
	return text + "; what the VM did since is given up"
}

// InHand is the node whose loss frees a VM for a wake elsewhere: the one where an open wake
// restores it, after which its owner before, if there was one, is called lost already; else
// its owner. Empty: no node has it in hand.
func InHand(rec *nodev1.Record) string {
	if op := rec.GetOperation(); op.GetKind() == nodev1.Kind_KIND_WAKE {
		return op.GetDestination()
	}
	return rec.GetOwner().GetNode()
}

// driver is the node that takes the steps of an operation.
func driver(op *nodev1.Operation) string {
	if op.GetKind() == nodev1.Kind_KIND_WAKE {
		return op.GetDestination()
	}
	return op.GetSource()
}

// abandoned reports whether an open operation is one of a node that is called lost. A
// move is, if the record has that node as the VM's owner, which the caller wants.
func abandoned(open *nodev1.Operation, lost string) bool {
	return lost != "" && (driver(open) == lost || open.GetKind() == nodev1.Kind_KIND_MIGRATE)
}

// abandon closes what a lost node will never close.
func abandon(op *nodev1.Operation, node string, now time.Time) {
	op.ClosedUnixNano = now.UnixNano()
	if op.GetReason() == "" {
		op.Reason = "node " + node + " is lost"
	}
	switch {
	case !Committed(op.GetPhase()):
		op.Phase = failed
	case captures(op.GetKind()), op.GetPhase() == cleaning:
		op.Phase, op.CleanupPending = succeeded, true
	default:
		op.Phase = lostAtDest
	}
}
