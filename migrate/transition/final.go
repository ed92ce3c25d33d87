package transition

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Delete orders that a VM is deleted once a last snapshot of it stands. It also says what a try has come to that
// opened no operation, or calls the order off.
func Delete(s State, req *nodev1.DeleteRequest, now time.Time) (Change, error) {
	rec, want := s.Record, req.GetDeletion()
	call := fmt.Sprintf("delete VM %s after a final snapshot", name(req.GetVm()))
	switch stands := rec.GetDeletion(); {
	case rec == nil:
		return Change{}, missing(req.GetVm())
	case !sameUID(rec, req.GetUid()):
		return Change{}, fresh(rec, "delete", req.GetUid(), rec.GetGeneration())
	case req.GetCancel():
		return cancelDeletion(s, call)
	case !operationID.MatchString(want.GetId()):
		return Change{}, fmt.Errorf("%s: its id %q must match %s: %w", call, want.GetId(), operationID,
			errdefs.ErrInvalidArgument)
	case want.GetReason() != "":
		if stands.GetId() != want.GetId() || rec.GetOperation().GetDeletion() == want.GetId() { // it was opened after all
			return keep(s)
		}
		rec = edit(s)
		failing(rec.Deletion, "", want.GetReason(), want.GetClass(), now)
		return Change{Record: rec}, nil
	case stands.GetId() == want.GetId():
		return keep(s)
	case rec.GetOwner().GetNode() == "" || record.IsLost(rec):
		return Change{}, held(rec, call)
	}
	rec = edit(s)
	rec.Deletion = &nodev1.Deletion{Id: want.GetId(), EndExecs: want.GetEndExecs(), OrderedUnixNano: now.UnixNano()}
	return Change{Record: rec}, nil
}

// cancelDeletion ends the order, and its try if one is under way, in one write: none commits after it.
func cancelDeletion(s State, call string) (Change, error) {
	if s.Record.GetDeletion() == nil {
		return keep(s)
	}
	rec := edit(s)
	rec.Deletion = nil
	if op := rec.GetOperation(); op.GetDeletion() != "" {
		if Committed(op.GetPhase()) {
			return Change{}, held(s.Record, call+" no more: it sleeps")
		}
		if may(advances, op, aborting) {
			op.Phase, op.Reason, op.Cancelled = aborting, "its deletion was called off", true
		}
	}
	return Change{Record: rec}, nil
}

// ordered refuses the try of an order that does not stand any more.
func ordered(rec *nodev1.Record, op *nodev1.Operation, call string) error {
	if d := op.GetDeletion(); d != "" && d != rec.GetDeletion().GetId() {
		return fmt.Errorf("%s: deletion %s was called off: %w", call, d, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// tried notes what op, which is closed, has come to for the order that stands.
func tried(rec *nodev1.Record, op *nodev1.Operation, now time.Time) {
	d := rec.GetDeletion()
	switch mine := op.GetDeletion() != "" && d != nil; {
	case mine && op.GetPhase() == succeeded:
		rec.Deletion = nil
	case !mine || op.GetDeletion() != d.GetId():
	case op.GetPhase() == aborted:
		rec.Deletion = nil
	case op.GetPhase() == failed:
		failing(d, op.GetId(), op.GetReason(), op.GetClass(), now)
	}
}

func failing(d *nodev1.Deletion, operation, reason, class string, now time.Time) {
	d.Tries++
	d.TriedUnixNano, d.Operation, d.Reason, d.Class = now.UnixNano(), operation, reason, class
}
