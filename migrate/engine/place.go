package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Places says where operations go that were opened without a destination, and makes what the VM comes into there: a
// pod. It is the controller's. Each call may come again at any time, from another controller too.
type Places interface {
	// Makes reports whether it makes the places of a VM. An operation on any other VM is opened with its destination.
	Makes(ctx context.Context, rec *nodev1.Record) (bool, error)
	// Place answers the node and the place of the attempt that the record has. It is the same answer for as long as
	// that attempt lasts. While there is none, the error is that of NotYet.
	Place(ctx context.Context, rec *nodev1.Record) (node, place string, err error)
	// Settled answers nil once others see that the VM is in its new place, and NotYet before. A move waits for that
	// before it ends the place at its source, for as long as settleBound.
	Settled(ctx context.Context, rec *nodev1.Record) error
	// Vacate ends the place of an attempt that is over; of 0: of the source, which the VM has left.
	Vacate(ctx context.Context, rec *nodev1.Record, attempt uint32) error
}

// NotYet is the error of a Place that has no answer yet: the operation waits, and asks again.
func NotYet(reason string) error { return &waitError{reason} }

// settleBound is how long a move waits after its commit for its new place to be seen.
const settleBound = 15 * time.Second

// The steps of an operation without a destination are the controller's, those of a wake too.
var (
	placeStep  = step{name: "find a place", do: findPlace, patient: true}
	unplaceNow = step{name: "give up the place", do: undoUnplaced}
)

// ByPlace reports whether operations on a VM are placed later.
func (e *Engine) ByPlace(ctx context.Context, rec *nodev1.Record) (bool, error) {
	if e.Places == nil {
		return false, nil
	}
	makes, err := e.Places.Makes(ctx, rec)
	if err != nil {
		return false, fmt.Errorf("ask for the places of VM %s: %w", name(rec.GetVm()), err)
	}
	return makes, nil
}

// WakePlaced opens a wake that Places brings to a node: to the one that the order names, if it names one.
func (e *Engine) WakePlaced(ctx context.Context, order *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
	req := order.GetWake()
	return e.order(ctx, req.GetVm(), req.GetOperation(), func(rec *nodev1.Record, open *nodev1.OpenRequest) error {
		if err := e.fillWake(ctx, rec, req, open); err != nil {
			return err
		}
		op := open.GetOperation()
		op.ByPlace, op.Wish, op.Driver = true, order.GetOn(), e.opts.Node
		if op.GetWish() == "" {
			return nil
		}
		return e.placement.takes(op.GetWish())
	})
}

// findPlace asks where the attempt goes, and writes that down before anything is made of it. What is placed meanwhile,
// called off, or turned elsewhere is left to the next turn.
func findPlace(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	if e.Places == nil {
		return fmt.Errorf("this controller gives no places: order it to a node (godwit nodes): %w",
			errdefs.ErrFailedPrecondition)
	}
	if op.GetKind() == nodev1.Kind_KIND_MIGRATE {
		if err := e.placement.mayBegin(ctx, op); err != nil {
			return err
		}
	}
	bound, cancel := context.WithTimeout(ctx, e.opts.Step)
	node, place, err := e.Places.Place(bound, rec)
	late := bound.Err() != nil && ctx.Err() == nil
	cancel()
	switch {
	case err != nil && late:
		return fmt.Errorf("no place was answered within %v: %w: %w", e.opts.Step, err, errdefs.ErrUnavailable)
	case err != nil:
		return err
	}
	_, err = e.Records.Place(ctx, &nodev1.PlaceRequest{Vm: op.GetVm(), Operation: op.GetId(), Attempt: op.GetAttempt(),
		Generation: op.GetGeneration(), Node: node, Place: place})
	if errdefs.IsFailedPrecondition(err) || errdefs.IsAborted(err) {
		if passed, perr := e.passed(ctx, op); passed || perr != nil {
			return records(perr)
		}
	}
	if err == nil && op.GetKind() == nodev1.Kind_KIND_WAKE {
		e.tellPlaced(ctx, op, node)
	}
	return records(err)
}

// tellPlaced tells a node that a wake was placed there. One that does not hear it finds the wake in its next round.
func (e *Engine) tellPlaced(ctx context.Context, op *nodev1.Operation, node string) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	peer, err := e.Peers.Peer(node)
	if err == nil {
		_, err = peer.Wake(ctx, &nodev1.WakeRequest{Vm: op.GetVm(), Operation: op.GetId(), Digest: op.GetDigest(),
			Stdio: op.GetStdio()})
	}
	if err != nil {
		e.tell(ctx, Retrying, op, fmt.Errorf("tell node %s of its wake: %w", node, err))
	}
}

// undoUnplaced ends a wake that was called off before it had a node. A place may be on its way all the same.
func undoUnplaced(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	if err := e.vacate(ctx, rec, op.GetAttempt()); err != nil {
		return err
	}
	return e.unwound(ctx, op)
}

// vacate ends a place of an operation that has places.
func (e *Engine) vacate(ctx context.Context, rec *nodev1.Record, attempt uint32) error {
	if e.Places == nil || !rec.GetOperation().GetByPlace() {
		return nil
	}
	if err := e.Places.Vacate(ctx, rec, attempt); err != nil {
		return fmt.Errorf("end the place of attempt %d: %w", attempt, err)
	}
	return nil
}

// seen waits for others to see the VM in its new place.
func (e *Engine) seen(ctx context.Context, rec *nodev1.Record) error {
	op := rec.GetOperation()
	left := settleBound - e.now().Sub(time.Unix(0, op.GetCommittedUnixNano()))
	if e.Places == nil || !op.GetByPlace() || left <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	err := e.Places.Settled(ctx, rec)
	if err == nil || waiting(err) {
		return err
	}
	return fmt.Errorf("place %s on node %s: %w", op.GetPlace(), op.GetDestination(), err)
}

// mayBegin has a move wait for its turn before it has a place: its pod would hold room that moves before it need.
func (p *placement) mayBegin(ctx context.Context, op *nodev1.Operation) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	defer p.giving.Give()
	return p.turn(ctx, op, false)
}
