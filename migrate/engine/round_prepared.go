package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// prepared is a source whose VM stands still for an operation.
func (r *rounds) prepared(s *localVM) ending {
	ref, mine := s.ref(), s.rec.GetOwner().GetNode() == r.opts.Node
	idle := mine && s.rec.GetOperation() == nil && s.q.GetRecord() == recordPrepared
	leave := func(ctx context.Context) error { return r.releaseDeparted(ctx, s) }
	switch {
	case ref.GetOperation() == "" || s.under(): // its driver decides
		return nil
	case s.rec == nil && !s.removed: // a copy of the records may be of before there was one
		return func(ctx context.Context) error { return r.unknown(ctx, s) }
	case s.rec == nil: // it was given up: the record was removed
		if !r.long("no record", s) {
			return nil
		}
		return leave
	case s.kept() && idle && s.rec.GetKept().GetReclaimed():
		return func(ctx context.Context) error { return r.reclaim(ctx, s) }
	case s.kept():
		return nil
	case idle && s.rec.GetGeneration() == ref.GetGeneration(): // nothing was committed
		return func(ctx context.Context) error { return r.runAgain(ctx, s) }
	case mine || s.rec.GetGeneration() <= ref.GetGeneration():
		return nil
	}
	return leave
}

// sending is a source that has not voted: nothing can have been committed for its operation. Once that
// is over, or the records know nothing of it, the VM runs on. It would stand still until the shim's own
// deadline where another than its driver has settled the operation.
func (r *rounds) sending(s *localVM) ending {
	mine := s.rec.GetOwner().GetNode() == r.opts.Node && s.rec.GetGeneration() == s.q.GetGeneration()
	if !mine || s.under() || s.ref().GetOperation() == "" {
		return r.superseded(s)
	}
	return func(ctx context.Context) error {
		return r.Machines.Abort(ctx, s.vm, &machinev1.AbortRequest{Ref: s.ref(), Reason: overReason(s.ref())})
	}
}

// unknown keeps what stands still for an operation if it is not known that the operation was given up: it may be
// all there is of the VM.
func (r *rounds) unknown(ctx context.Context, s *localVM) error {
	if s.q.GetRecord() != recordPrepared {
		return nil
	}
	err := fmt.Errorf("it stands still for operation %s, and the controller does not know it. To give it up, on this "+
		"node: godwit rm --force %s: %w", s.ref().GetOperation(), name(s.vm), errdefs.ErrUnavailable)
	return errors.Join(err, r.doubt(ctx))
}

// runAgain lets a VM run again whose operation committed nothing, if the records know that operation as over.
// Records that do not know it may be an old copy, and the operation may have been committed since. That is ruled
// out once all nodes have said what they hold since it began.
func (r *rounds) runAgain(ctx context.Context, s *localVM) error {
	ref := s.ref()
	resp, err := r.Records.Operation(ctx, &nodev1.OperationRequest{Id: ref.GetOperation()})
	switch {
	case errdefs.IsNotFound(err) && record.Predates(s.rec, ref.GetGeneration()):
		return r.Machines.Abort(ctx, s.vm, &machinev1.AbortRequest{Ref: ref, Reason: overReason(ref)})
	case errdefs.IsNotFound(err):
		return errors.Join(fmt.Errorf("it stands still for operation %s, which the controller does not know: %w",
			ref.GetOperation(), errdefs.ErrUnavailable), r.doubt(ctx))
	case err != nil || !transition.Settled(resp.GetOperation().GetPhase()):
		return err
	}
	return r.Machines.Abort(ctx, s.vm, &machinev1.AbortRequest{Ref: ref, Reason: overReason(ref)})
}

func overReason(ref *machinev1.Ref) string { return "operation " + ref.GetOperation() + " is over" }

// reclaim lets a VM run again that was lost at its destination, as its record wants.
func (r *rounds) reclaim(ctx context.Context, s *localVM) error {
	op := s.ref().GetOperation()
	_, err := r.Machines.Revert(ctx, s.vm, &machinev1.RevertRequest{Ref: s.ref(), OwnerGeneration: s.rec.GetGeneration()})
	if err == nil {
		r.Events.Event(ctx, Event{Type: Reclaimed, Operation: op, VM: s.vm,
			Reason: "operation " + op + " lost it at its destination"})
	}
	return err
}
