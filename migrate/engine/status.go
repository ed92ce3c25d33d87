package engine

import (
	"context"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// queryTimeout bounds the question for progress: status is never held up by a VM.
const queryTimeout = time.Second

// Status answers an open or closed operation, of whatever node.
func (e *Engine) Status(ctx context.Context, id string) (*nodev1.StatusResponse, error) {
	resp, err := e.Records.Operation(ctx, &nodev1.OperationRequest{Id: id})
	if err != nil {
		return nil, err
	}
	status := describe(resp.GetOperation())
	if resp.GetOperation().GetCleanupPending() {
		status.Operation.CleanupPending = e.owesCleanup(ctx, status.GetOperation().GetVm())
	}
	if status.GetSettled() || !e.drives(resp.GetOperation()) {
		return status, nil
	}
	if r := e.running(id); r != nil {
		if step, waiting := r.look(); step != "" {
			status.Step, status.Waiting = step, waiting
		}
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	q, err := e.Observer.Query(ctx, resp.GetOperation().GetVm())
	if p := q.GetProgress(); err == nil && p != nil && q.GetRef().GetOperation() == id {
		status.Step, status.Done, status.Total = p.GetStep(), p.GetDone(), p.GetTotal()
	}
	return status, nil
}

// owesCleanup reports whether snapshots that an operation could not drop are still
// listed (S0-54). The operation itself stays as it was settled.
func (e *Engine) owesCleanup(ctx context.Context, vm *nodev1.VM) bool {
	rec, err := e.Records.Get(ctx, &nodev1.GetRequest{Vm: vm})
	return err != nil && !errdefs.IsNotFound(err) || len(rec.GetSnapshots()) > e.opts.Keep
}

// describe is what the durable operation alone says.
func describe(op *nodev1.Operation) *nodev1.StatusResponse {
	status := &nodev1.StatusResponse{Operation: op, Settled: op.GetClosedUnixNano() != 0}
	if s, err := next(op); err == nil {
		status.Step = s.name
	}
	if r, err := record.ParseReceipt(op.GetReceipt()); err == nil {
		status.Figures = &nodev1.Figures{
			PauseMs: r.PauseMS, DurableMs: r.DurableMS, WakeMs: r.WakeMS, RamBytes: r.RAMBytes,
			ResidentBytes: r.ResidentBytes, PushedBytes: r.PushedBytes, TotalBytes: r.TotalBytes, Vmm: r.VMM,
		}
	}
	return status
}
