package engine

import (
	"context"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// settled ends the run of an operation that is not the open one any more. A hibernate
// that a wake elsewhere has closed, because this node did not answer, still has its VM
// here, voted and stopped: it is released as the hibernate would have done.
func (e *Engine) settled(ctx context.Context, r *run, rec *nodev1.Record) (bool, error) {
	if r.kind != nodev1.Kind_KIND_HIBERNATE {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.opts.Step)
	defer cancel()
	op, err := r.released, error(nil)
	if op == nil {
		op, err = e.leftHere(ctx, r.vm, r.id)
	}
	if op == nil || err != nil {
		return err == nil, err
	}
	if err := e.Machines.Release(ctx, r.vm, releaseOf(op)); err != nil && !errdefs.IsNotFound(err) {
		return false, err
	}
	r.released = op
	if rec.GetOwner().GetNode() == e.opts.Node || rec.GetOperation().GetDestination() == e.opts.Node {
		return true, nil // the VM is coming back: what containerd holds is its
	}
	err = e.Leavings.Hibernated(ctx, r.vm, op.GetDigest())
	return err == nil, err
}

// leftHere answers the hibernate of that id if a wake elsewhere has closed it and this
// node still holds its VM.
func (e *Engine) leftHere(ctx context.Context, vm *nodev1.VM, id string) (*nodev1.Operation, error) {
	resp, err := e.Records.Operation(ctx, &nodev1.OperationRequest{Id: id})
	if errdefs.IsNotFound(err) {
		return nil, nil // nobody knows that it was committed
	}
	op := resp.GetOperation()
	owed := op.GetKind() == nodev1.Kind_KIND_HIBERNATE && op.GetSource() == e.opts.Node &&
		op.GetPhase() == nodev1.Phase_PHASE_SUCCEEDED && op.GetCleanupPending()
	if err != nil || !owed {
		return nil, err
	}
	q, err := e.Observer.Query(ctx, vm)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	mine := q.GetRef().GetOperation() == id && q.GetRef().GetAttempt() == op.GetAttempt()
	if err != nil || !mine || q.GetRecord() != recordPrepared && q.GetRecord() != recordReleased {
		return nil, err
	}
	return op, nil
}

// overtaken takes up the hibernate whose VM is left here, after a restart of this node.
func (e *Engine) overtaken(ctx context.Context, vm *nodev1.VM) error {
	q, err := e.Observer.Query(ctx, vm)
	if err != nil {
		return nil // no shim yet
	}
	if moved, err := e.stray(ctx, vm, q); moved || err != nil {
		return err
	}
	if q.GetRecord() != recordPrepared && q.GetRecord() != recordReleased {
		return nil
	}
	op, err := e.leftHere(ctx, vm, q.GetRef().GetOperation())
	if op != nil {
		e.start(op)
	}
	return err
}
