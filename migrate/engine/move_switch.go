package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// switchOver has the source stop for good, and commits: from here on the VM is the
// destination's.
func switchOver(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	e.tell(ctx, Switching, op, nil)
	begun := e.now()
	resp, err := ask(ctx, e.core, op.GetSource(), nodev1.PeerService.Vote, peerRef(op))
	if err != nil {
		return err
	}
	if resp.GetDigest() != op.GetDigest() {
		return fmt.Errorf("the source votes for %q, sent was %s: %w", resp.GetDigest(), op.GetDigest(),
			errdefs.ErrFailedPrecondition)
	}
	receipt, err := record.ParseReceipt(op.GetReceipt())
	if err != nil {
		return err
	}
	receipt.Stopped, receipt.VoteMS = true, sinceMS(begun.UnixNano(), e.now())
	if receipt.CopyMS == 0 && receipt.StopAt != 0 {
		receipt.CopyMS = float64(begun.UnixNano()-receipt.StopAt) / float64(time.Millisecond)
	}
	return e.commit(ctx, op, &nodev1.Owner{Node: op.GetDestination()}, receipt.String())
}

// runMoved lets the destination run the VM. There is no way back but a fence that it
// wrote before it ran anything; what may have run and does not is lost (R9).
func runMoved(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	begun := e.now()
	resp, err := ask(ctx, e.core, op.GetDestination(), nodev1.PeerService.Run, peerRef(op))
	switch {
	case errdefs.IsDataLoss(err):
		return e.lost(ctx, rec, nodev1.Phase_PHASE_LOST_AT_DEST, err.Error())
	case err != nil:
		return err
	case resp.GetFenced():
		return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_REVERTING,
			Reason: "the destination fenced itself before it ran the VM"})
	case !resp.GetRunning():
		return fmt.Errorf("started, not seen running: %w", errdefs.ErrUnavailable)
	}
	outcome := e.outcome(op, begun, resp)
	return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_CLEANING, Outcome: outcome.String()})
}

// outcome says where a move's time went, up to when the guest ran: that it was asked who it
// is, and answered, was no downtime.
func (e *Engine) outcome(op *nodev1.Operation, begun time.Time, resp *nodev1.PeerRunResponse) record.Outcome {
	now := e.now()
	ran := now.Add(-time.Duration(resp.GetSinceMs() * float64(time.Millisecond)))
	out := record.Outcome{RunMS: max(0, sinceMS(begun.UnixNano(), ran)), TotalMS: sinceMS(op.GetStartedUnixNano(), now)}
	r, err := record.ParseReceipt(op.GetReceipt())
	if err != nil {
		return out
	}
	out.CopyMS, out.VoteMS = r.CopyMS, r.VoteMS
	if r.StopAt != 0 {
		out.DowntimeMS = max(r.CopyMS+r.VoteMS+out.RunMS, sinceMS(r.StopAt, ran))
		out.CommitMS = out.DowntimeMS - out.CopyMS - out.VoteMS - out.RunMS
	}
	return out
}

// releaseMoved destroys the VM at its source: that it runs elsewhere is durable (R3). A source that does not answer
// holds nothing up: it finds out when it is back.
func releaseMoved(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	if err := e.seen(ctx, rec); err != nil {
		return err
	}
	_, err := ask(ctx, e.core, op.GetSource(), nodev1.PeerService.Release, &nodev1.PeerReleaseRequest{
		Vm: op.GetVm(), Ref: ref(op), Digest: op.GetDigest(), Owner: op.GetDestination(),
	})
	var link *LinkError
	long := e.now().Sub(time.Unix(0, op.GetCommittedUnixNano())) > e.opts.Step
	silent := errors.As(err, &link) && long
	if err != nil && !silent && !errdefs.IsNotFound(err) {
		return err
	}
	if !silent {
		err = nil
	}
	kept := e.vacate(ctx, rec, 0)
	if kept != nil && !long {
		return kept
	}
	return e.succeeded(ctx, rec, errors.Join(err, kept))
}

// undoMove ends an attempt whose commit does not come. The destination cannot run the VM any
// more, whether it hears of that or not: only a commit lets it.
func undoMove(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	silent := false
	if op.GetStartedUnixNano() != 0 { // else it had no place yet, and no node has heard of this attempt
		var err error
		if silent, err = e.abortAttempt(ctx, op); err != nil {
			return err
		}
	}
	if err := e.vacate(ctx, rec, op.GetAttempt()); err != nil {
		return err
	}
	if op.GetRetarget() != "" {
		_, err := e.Records.Retry(ctx, &nodev1.RetryRequest{Vm: op.GetVm(), Operation: op.GetId(), Attempt: op.GetAttempt(),
			Generation: op.GetGeneration()})
		if err == nil {
			e.tell(ctx, Retargeted, op, nil)
		}
		return records(err)
	}
	phase := nodev1.Phase_PHASE_FAILED
	if op.GetCancelled() {
		phase = nodev1.Phase_PHASE_ABORTED
	}
	return e.finish(ctx, op, phase, "", silent)
}

// abortAttempt lets the VM run on at its source, and ends what the destination has made of it.
func (e *Engine) abortAttempt(ctx context.Context, op *nodev1.Operation) (silent bool, err error) {
	abort := &nodev1.PeerAbortRequest{Vm: op.GetVm(), Ref: ref(op), Reason: op.GetReason()}
	_, err = ask(ctx, e.core, op.GetSource(), nodev1.PeerService.Abort, abort)
	if errdefs.IsFailedPrecondition(err) && e.notHeldAtSource(ctx, op) {
		err = nil
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return false, err
	}
	return e.discard(ctx, op)
}

// discard ends what the destination has made of the VM. A destination that does not answer holds nothing up: it is
// done later.
func (e *Engine) discard(ctx context.Context, op *nodev1.Operation) (silent bool, err error) {
	_, err = ask(ctx, e.core, op.GetDestination(), nodev1.PeerService.Discard, peerRef(op))
	var link *LinkError
	if silent = errors.As(err, &link); silent || errdefs.IsNotFound(err) {
		return silent, nil
	}
	return false, err
}

// notHeldAtSource reports whether the source says that this attempt does not hold its VM: then there
// is nothing to give back, whatever an operation before has left there. One that is being given
// back is held still.
func (e *Engine) notHeldAtSource(ctx context.Context, op *nodev1.Operation) bool {
	state, err := ask(ctx, e.core, op.GetSource(), nodev1.PeerService.Query, peerRef(op))
	if err != nil {
		return false
	}
	return !sameRef(state.GetMachine().GetRef(), op) && state.GetMachine().GetState() != stateAborting
}

// revertMove gives the VM back to its source, under the generation that the revert has
// made.
func revertMove(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	resp, err := ask(ctx, e.core, op.GetSource(), nodev1.PeerService.Revert, &nodev1.PeerRevertRequest{
		Vm: op.GetVm(), Ref: ref(op), OwnerGeneration: rec.GetGeneration(),
	})
	if err == nil && resp.GetState() == stateStopped {
		err = fmt.Errorf("the VM ended at its source: %w", errdefs.ErrDataLoss)
	}
	if errdefs.IsNotFound(err) || errdefs.IsDataLoss(err) {
		return e.lost(ctx, rec, nodev1.Phase_PHASE_LOST_AT_SRC, err.Error())
	}
	if err != nil {
		return err
	}
	silent, err := e.discard(ctx, op)
	if err == nil {
		err = e.vacate(ctx, rec, op.GetAttempt())
	}
	if err != nil {
		return err
	}
	return e.finish(ctx, op, nodev1.Phase_PHASE_FAILED, "", silent)
}
