package transition

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Place says where the attempt of an unplaced operation goes: once, before anything is made of it. An order to call
// it off, or another attempt, comes before a place that was found late.
func Place(s State, req *nodev1.PlaceRequest, now time.Time) (Change, error) {
	call := fmt.Sprintf("place operation %s of VM %s on node %s", req.GetOperation(), name(req.GetVm()), req.GetNode())
	op, err := current(s, req, call)
	if err != nil {
		return Change{}, err
	}
	refuse := func(class error, format string, args ...any) (Change, error) {
		return Change{}, fmt.Errorf("%s: %s: %w", call, fmt.Sprintf(format, args...), class)
	}
	switch {
	case req.GetNode() == "" || req.GetPlace() == "":
		return refuse(errdefs.ErrInvalidArgument, "node and place are needed")
	case !op.GetByPlace():
		return refuse(errdefs.ErrFailedPrecondition, "its order named where it goes")
	case op.GetDestination() == req.GetNode() && op.GetPlace() == req.GetPlace():
		return keep(s)
	case !record.Unplaced(op):
		return refuse(errdefs.ErrFailedPrecondition, "attempt %d goes to place %s on node %s already", op.GetAttempt(),
			op.GetPlace(), op.GetDestination())
	case op.GetPhase() != pending:
		return Change{}, wrongPhase(call, op)
	case op.GetWish() != "" && op.GetWish() != req.GetNode():
		return refuse(errdefs.ErrFailedPrecondition, "it was ordered to node %s", op.GetWish())
	case req.GetNode() == op.GetSource():
		return refuse(errdefs.ErrFailedPrecondition, "the VM is there, and moves away")
	case req.GetNode() == s.Record.GetOwner().GetNode() && op.GetKind() == nodev1.Kind_KIND_WAKE:
		return refuse(errdefs.ErrFailedPrecondition, "the order says that this node is lost")
	}
	rec := edit(s)
	op = rec.Operation
	op.Destination, op.Place = req.GetNode(), req.GetPlace()
	if op.GetKind() == nodev1.Kind_KIND_WAKE { // a move has its turn in the queue first
		op.StartedUnixNano = now.UnixNano()
	}
	return Change{Record: rec}, nil
}

// placedEarly says what is wrong with the place of an operation that opens; empty: nothing.
func placedEarly(op *nodev1.Operation) string {
	switch {
	case op.GetPlace() != "" || op.GetByPlace() && (captures(op.GetKind()) || op.GetDestination() != ""):
		return "a place is given later, to a wake or a move without a destination"
	case op.GetWish() != "" && (!op.GetByPlace() || op.GetWish() == op.GetSource()):
		return "a wish is another node for what is placed later"
	}
	return ""
}

// heading is the node that an order names; empty: it names none.
func heading(op *nodev1.Operation) string {
	if op.GetByPlace() {
		return op.GetWish()
	}
	return op.GetDestination()
}
