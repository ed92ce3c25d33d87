package engine

import (
	"context"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// stray ends what a move has left on this node, because it did not answer when the move
// was settled: at its source the VM that runs elsewhere, at its destination the one that
// never runs here. It reports whether the VM was such a one.
func (e *Engine) stray(ctx context.Context, vm *nodev1.VM, q *machinev1.QueryResponse) (bool, error) {
	id := q.GetRef().GetOperation()
	if id == "" {
		return false, nil
	}
	resp, err := e.Records.Operation(ctx, &nodev1.OperationRequest{Id: id})
	op := resp.GetOperation()
	if errdefs.IsNotFound(err) || err == nil && op.GetKind() != nodev1.Kind_KIND_MIGRATE {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, e.opts.Step)
	defer cancel()
	over := transition.Settled(op.GetPhase()) || op.GetAttempt() > q.GetRef().GetAttempt()
	switch q.GetRecord() {
	case recordPrepared, recordReleased:
		if op.GetSource() != e.opts.Node || op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || op.GetAttempt() != q.GetRef().GetAttempt() {
			return true, nil
		}
		return true, e.leave(ctx, op)
	case recordIncoming, recordReady:
		if !over {
			return true, nil
		}
		return true, e.Tasks.Undo(ctx, vm, Restore{Intent: record.Intent{
			Operation: id, Attempt: q.GetRef().GetAttempt(), Digest: record.StreamPrefix + id,
		}})
	}
	return true, nil
}

// leave is what a source does that a move has left behind.
func (e *Engine) leave(ctx context.Context, op *nodev1.Operation) error {
	if err := e.Leavings.Leaving(ctx, op.GetVm(), op.GetDigest()); err != nil {
		return err
	}
	if err := e.Machines.Release(ctx, op.GetVm(), releaseOf(op)); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return e.Leavings.Hibernated(ctx, op.GetVm(), op.GetDigest())
}
