package engine

import (
	"context"
	"slices"
	"time"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"

	machinev1 "godwit.dev/godwit/api/machine/v1"
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
		status.Operation.CleanupPending = e.cleanupPending(ctx, status.GetOperation().GetVm())
	}
	if status.GetSettled() || !e.drives(resp.GetOperation()) {
		return status, nil
	}
	if r := e.running(id); r != nil {
		if step, waiting := r.look(); step != "" {
			status.Step, status.Waiting = step, waiting
		}
	}
	switch op := resp.GetOperation(); {
	case record.Unplaced(op): // no node has anything of it
		return status, nil
	case op.GetKind() == nodev1.Kind_KIND_MIGRATE:
		return e.progress(ctx, status), nil
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	q, err := e.Observer.Query(ctx, resp.GetOperation().GetVm())
	if p := q.GetProgress(); err == nil && p != nil && q.GetRef().GetOperation() == id {
		status.Step, status.Done, status.Total = p.GetStep(), p.GetDone(), p.GetTotal()
	}
	return status, nil
}

// cleanupPending reports whether a deletion of the VM is still pending. The operation
// itself stays as it was settled.
func (e *Engine) cleanupPending(ctx context.Context, vm *nodev1.VM) bool {
	resp, err := e.Records.Owed(ctx, &nodev1.OwedRequest{Vm: vm})
	return err != nil || slices.ContainsFunc(resp.GetOwed(), func(o *nodev1.Owed) bool {
		return name(o.GetVm()) == name(vm)
	})
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
			MovedBytes: r.MovedBytes, ResidentBytes: r.ResidentBytes, PushedBytes: r.PushedBytes, TotalBytes: r.TotalBytes,
			Vmm:      r.VMM,
			Tracking: r.Tracking, Untracked: r.Untracked, DeadBytes: r.DeadBytes, StopMs: r.StopMS, SaveMs: r.SaveMS,
			InsideBytes: r.InsideBytes, Notes: r.Notes,
		}
		for _, p := range r.Passes {
			status.Figures.Passes = append(status.Figures.Passes, &nodev1.Pass{
				LookedBytes: p.LookedBytes, SentBytes: p.SentBytes, LeftBytes: p.LeftBytes, Ms: p.MS,
			})
		}
	}
	if o, ok := record.ParseOutcome(op.GetOutcome()); ok && status.Figures != nil {
		f := status.GetFigures()
		f.DowntimeMs, f.CopyMs, f.VoteMs, f.CommitMs, f.RunMs, f.TotalMs = o.DowntimeMS, o.CopyMS, o.VoteMS, o.CommitMS,
			o.RunMS, o.TotalMS
	}
	return status
}

// progress asks the node that is at work on a move.
func (e *Engine) progress(ctx context.Context, status *nodev1.StatusResponse) *nodev1.StatusResponse {
	op := status.GetOperation()
	node := op.GetSource()
	if op.GetMode() != moves.ModeLive && op.GetDigest() != "" {
		node = op.GetDestination()
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	peer, err := e.Peers.Peer(node)
	if err != nil {
		return status
	}
	q, err := peer.Query(ctx, peerRef(op))
	m := q.GetMachine()
	p, by := m.GetProgress(), m.GetRef()
	if err != nil || p == nil || by.GetOperation() != op.GetId() || by.GetAttempt() != op.GetAttempt() {
		return status
	}
	status.Step, status.Done, status.Total = p.GetStep(), p.GetDone(), p.GetTotal()
	status.Transfer = transferOf(p)
	return status
}

// transferOf is what the source of a live move says of its passes; nil before the first.
func transferOf(p *machinev1.Progress) *nodev1.Transfer {
	if p.GetPass() == 0 {
		return nil
	}
	return &nodev1.Transfer{
		Pass: p.GetPass(), SentBytes: p.GetMoved(), LeftBytes: p.GetLeft(), DirtyRate: p.GetDirtyRate(),
		DowntimeMs: p.GetExpectedMs(),
	}
}
