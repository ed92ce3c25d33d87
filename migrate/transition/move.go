package transition

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// setRetarget notes where a move goes once this attempt is undone (R6). The last order
// before that counts; the source itself calls the move off.
func setRetarget(op *nodev1.Operation, req *nodev1.AdvanceRequest, turn bool, call string) error {
	to := req.GetRetarget()
	switch {
	case to == "":
		if op.GetCancelled() || turn && op.GetPhase() == aborting {
			op.Retarget = ""
		}
		return nil
	case op.GetKind() != nodev1.Kind_KIND_MIGRATE || op.GetPhase() != aborting:
		return fmt.Errorf("%s: only a move that is being undone goes to another node: %w", call, errdefs.ErrInvalidArgument)
	case op.GetCancelled():
		return fmt.Errorf("%s: it was called off: %w", call, errdefs.ErrFailedPrecondition)
	case to == op.GetSource():
		op.Retarget, op.Cancelled = "", true
	default:
		op.Retarget = to
	}
	return nil
}

// maxAttempts are remembered of a move, the last ones: a user who turns it round again and again fills no store.
const maxAttempts = 64

// Retry begins the next attempt of a move whose last one is undone: nothing of that one
// counts any more (R1). Output goes where the configuration of the new node says.
func Retry(s State, req *nodev1.RetryRequest, now time.Time) (Change, error) {
	call := fmt.Sprintf("retry operation %s of VM %s", req.GetOperation(), name(req.GetVm()))
	if op := s.Named; op != nil && op.GetAttempt() == req.GetAttempt()+1 && proto.Equal(op.GetVm(), req.GetVm()) {
		return keep(s)
	}
	op, err := current(s, req, call)
	if err != nil {
		return Change{}, err
	}
	if op.GetPhase() != aborting || op.GetRetarget() == "" {
		return Change{}, wrongPhase(call, op)
	}
	rec := edit(s)
	op = rec.Operation
	save(rec, op)
	op.Attempts = append(op.Attempts, fmt.Sprintf("%d to %s: %s", op.GetAttempt(), op.GetDestination(), op.GetReason()))
	op.Attempts = op.Attempts[max(0, len(op.Attempts)-maxAttempts):]
	op.Attempt++
	if op.GetByPlace() {
		op.Wish, op.Place, op.Destination = op.GetRetarget(), "", ""
	} else {
		op.Destination = op.GetRetarget()
	}
	op.Retarget, op.Phase, op.Mode = "", pending, op.GetWantedMode()
	op.Digest, op.Repository, op.Tag, op.Receipt, op.Reason, op.Class = "", "", "", "", "", ""
	if op.GetStdio() != record.NoOutput { // else it is a file or a program of the node that the last attempt went to
		op.Stdio = ""
	}
	op.OpenedUnixNano, op.StartedUnixNano = now.UnixNano(), 0
	return Change{Record: rec}, nil
}
