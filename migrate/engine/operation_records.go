package engine

import (
	"context"
	"errors"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// ref names the operation to a shim (R10).
func ref(op *nodev1.Operation) *machinev1.Ref {
	return &machinev1.Ref{Operation: op.GetId(), Attempt: op.GetAttempt(), Generation: op.GetGeneration()}
}

func sameRef(r *machinev1.Ref, op *nodev1.Operation) bool {
	return r.GetOperation() == op.GetId() && r.GetAttempt() == op.GetAttempt()
}

func (c *core) advance(ctx context.Context, op *nodev1.Operation, req *nodev1.AdvanceRequest) error {
	req.Vm, req.Operation, req.Attempt, req.Generation = op.GetVm(), op.GetId(), op.GetAttempt(), op.GetGeneration()
	_, err := c.Records.Advance(ctx, req)
	return records(err)
}

func (c *core) commit(ctx context.Context, op *nodev1.Operation, owner *nodev1.Owner, receipt string) error {
	_, err := c.Records.Commit(ctx, &nodev1.CommitRequest{
		Vm: op.GetVm(), Operation: op.GetId(), Attempt: op.GetAttempt(), Generation: op.GetGeneration(), Owner: owner,
		Receipt: receipt,
	})
	if err == nil {
		c.tell(ctx, Committed, op, nil)
	}
	return records(err)
}

// succeeded settles an operation that has done its work, and deletes what that made
// superfluous. What cannot be deleted now, or was not done before (err), stays pending.
func (e *Engine) succeeded(ctx context.Context, rec *nodev1.Record, err error) error {
	op := rec.GetOperation()
	err = errors.Join(err, e.retention.trim(ctx, rec), e.retention.cleanPromptly(ctx, op.GetVm()))
	if err != nil {
		e.tell(ctx, CleanupPending, op, err)
	}
	return e.finish(ctx, op, nodev1.Phase_PHASE_SUCCEEDED, "", err != nil)
}

// finish settles op; reason counts if no earlier one is known.
func (c *core) finish(ctx context.Context, op *nodev1.Operation, phase nodev1.Phase, reason string,
	pending bool) error {
	_, err := c.Records.Finish(ctx, &nodev1.FinishRequest{
		Vm: op.GetVm(), Operation: op.GetId(), Attempt: op.GetAttempt(), Generation: op.GetGeneration(),
		Phase: phase, Reason: reason, CleanupPending: pending,
	})
	if err != nil {
		return records(err)
	}
	if op.GetReason() != "" {
		reason = op.GetReason()
	}
	for _, s := range c.Steps {
		s.Over(op, phase, reason)
	}
	c.Events.Event(ctx, Event{Type: settled[phase], Operation: op.GetId(), VM: op.GetVm(), Kind: op.GetKind(),
		Reason: reason, Receipt: op.GetReceipt(), Op: op})
	return nil
}

// unwound settles an operation whose rollback is done.
func (c *core) unwound(ctx context.Context, op *nodev1.Operation) error {
	phase := nodev1.Phase_PHASE_FAILED
	if op.GetCancelled() {
		phase = nodev1.Phase_PHASE_ABORTED
	}
	return c.finish(ctx, op, phase, "", false)
}
