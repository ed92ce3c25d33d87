package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// hibernate: capture pauses the VM towards its end; it stays so to release, or runs on
// after abort.
var hibernate = map[nodev1.Phase]step{
	nodev1.Phase_PHASE_PENDING:      {name: "begin", do: begin},
	nodev1.Phase_PHASE_TRANSFERRING: {name: "capture", do: capture},
	nodev1.Phase_PHASE_SWITCHING:    {name: "vote", do: prepareSource},
	nodev1.Phase_PHASE_COMMITTED:    {name: "release", do: release},
	nodev1.Phase_PHASE_CLEANING:     {name: "clean up", do: finishHibernate},
	nodev1.Phase_PHASE_ABORTING:     {name: "give back", do: abortCapture},
}

// begin makes the phase durable before the first side effect. A store that takes
// nothing is found out here, while the VM still runs, and not by the capture of a paused
// one.
func begin(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	if err := e.Snapshots.Accepts(ctx, rec.GetOperation().GetRepository()); err != nil {
		return err
	}
	return e.advance(ctx, rec.GetOperation(), &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_TRANSFERRING})
}

func capture(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	order := captureOf(op)
	// Golden snapshots lie in the node's own repositories: what goes elsewhere goes by itself.
	own := e.opts.Repository(&nodev1.Record{Uid: rec.GetUid()})
	if e.Golden != nil && op.GetRepository() == own {
		order.Golden = e.Golden.Golden(ctx, op.GetVm())
	}
	resp, err := e.Machines.Capture(ctx, op.GetVm(), order)
	if err != nil {
		return err
	}
	if resp.GetDigest() == "" {
		return fmt.Errorf("the shim named no digest: %w", errdefs.ErrInternal)
	}
	if op.GetKind() == nodev1.Kind_KIND_CHECKPOINT && !resp.GetGoneOn() {
		return fmt.Errorf("the VM's shim is of a build that has no checkpoints, and holds the VM: %w",
			errdefs.ErrNotImplemented)
	}
	if op.GetDeletion() != "" { // before the record knows it: one that is no good shall not take the place of one that is
		if err := readBack(ctx, e, op, resp.GetDigest()); err != nil {
			return err
		}
	}
	figures := e.captured(op, resp)
	return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_SWITCHING, Digest: resp.GetDigest(),
		Receipt: figures.String()})
}

// readBack is for a snapshot that will be all that is left: the VM runs on unless it can be read.
func readBack(ctx context.Context, e *Engine, op *nodev1.Operation, digest string) error {
	if err := e.Snapshots.Readable(ctx, op.GetRepository(), digest); err != nil {
		return fmt.Errorf("read final snapshot %s back: %w", digest, err)
	}
	return nil
}

func captureOf(op *nodev1.Operation) *machinev1.CaptureRequest {
	return &machinev1.CaptureRequest{
		Ref: ref(op), Repository: op.GetRepository(), Tag: op.GetTag(), EndExecs: op.GetEndExecs(),
		Concurrency: op.GetConcurrency(), Bandwidth: op.GetBandwidth(),
		TimeoutMs: op.GetTimeoutMs(), PauseBudgetMs: op.GetPauseBudgetMs(),
		Checkpoint: op.GetKind() == nodev1.Kind_KIND_CHECKPOINT, Paused: op.GetPaused(),
	}
}

// captured is what the receipt says of a capture.
func (e *Engine) captured(op *nodev1.Operation, resp *machinev1.CaptureResponse) record.Receipt {
	return record.Receipt{
		Operation: op.GetId(), Attempt: op.GetAttempt(), Generation: op.GetGeneration(), Digest: resp.GetDigest(),
		PauseMS: resp.GetPauseMs(), DurableMS: resp.GetDurableMs(), RAMBytes: resp.GetRamBytes(),
		ResidentBytes: resp.GetResidentBytes(), PushedBytes: resp.GetPushedBytes(), TotalBytes: resp.GetTotalBytes(),
		Tracking: resp.GetTracking(), Untracked: resp.GetUntracked(), DeadBytes: resp.GetDeadBytes(),
		StopMS: resp.GetStopMs(), SaveMS: resp.GetSaveMs(), InsideBytes: resp.GetInsideBytes(), Notes: resp.GetNotes(),
		Passes: passesOf(resp.GetPasses()),
		StopAt: e.now().Add(-time.Duration(resp.GetDurableMs() * float64(time.Millisecond))).UnixNano(),
	}
}

func passesOf(all []*machinev1.CapturePass) (passes []record.Pass) {
	for _, p := range all {
		passes = append(passes, record.Pass{
			LookedBytes: p.GetLookedBytes(), SentBytes: p.GetSentBytes(), LeftBytes: p.GetLeftBytes(), MS: p.GetMs(),
		})
	}
	return passes
}

// prepareSource has the VMM stopped for good, and commits with the receipt that says so.
func prepareSource(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	if d := rec.GetDeletion(); d != nil && !record.Stuck(d) && op.GetDeletion() == "" { // ordered since this one was
		if err := readBack(ctx, e, op, op.GetDigest()); err != nil {
			return err
		}
	}
	resp, err := e.Machines.Vote(ctx, op.GetVm(), &machinev1.VoteRequest{Ref: ref(op)})
	if err != nil {
		return err
	}
	if resp.GetDigest() != op.GetDigest() {
		return fmt.Errorf("the shim votes for %q, captured was %s: %w", resp.GetDigest(), op.GetDigest(),
			errdefs.ErrFailedPrecondition)
	}
	receipt, err := record.ParseReceipt(op.GetReceipt())
	if err != nil {
		return err
	}
	receipt.Stopped = true
	return e.commit(ctx, op, &nodev1.Owner{Digest: op.GetDigest()}, receipt.String())
}

// release destroys the VM here; the digest owns it (R3).
func release(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	q, err := e.Observer.Query(ctx, op.GetVm())
	switch {
	case err == nil && sameRef(q.GetRef(), op):
		err = e.Departed.MarkDeparted(ctx, op.GetVm(), q.GetCreatedUnixNano(), op.GetDigest(), "")
	case errdefs.IsNotFound(err): // released before, marked before that
		err = nil
	}
	if err != nil {
		return err
	}
	err = e.Machines.Release(ctx, op.GetVm(), &machinev1.ReleaseRequest{Ref: ref(op), Digest: op.GetDigest()})
	if err != nil && !errdefs.IsNotFound(err) { // gone is released
		return err
	}
	return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_CLEANING})
}

// finishHibernate ends what containerd holds, and deletes older snapshots in a pass of its own.
// One that stays does not hold up success (R4).
func finishHibernate(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	if err := e.Departed.CleanDeparted(ctx, op.GetVm(), op.GetDigest(), ""); err != nil {
		return err
	}
	if op.GetDeletion() != "" {
		if err := e.Departed.RemoveDeparted(ctx, op.GetVm(), op.GetDigest()); err != nil {
			return err
		}
	}
	return e.succeeded(ctx, rec, nil)
}

// abortCapture lets the VM run on at this node. A shim that has forgotten the
// operation, because it has ended it itself, refuses; what it says of itself counts. One that
// is giving the VM back is asked again until the VM runs.
func abortCapture(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	err := e.Machines.Abort(ctx, op.GetVm(), &machinev1.AbortRequest{Ref: ref(op), Reason: op.GetReason()})
	if errdefs.IsFailedPrecondition(err) {
		if q, qerr := e.Observer.Query(ctx, op.GetVm()); qerr == nil && q.GetRecord() == recordOwn &&
			q.GetState() != stateAborting {
			err = nil
		}
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return e.unwound(ctx, op)
}

// Node records that the engine looks for, as the shims write them.
const (
	recordOwn    = "OWN"
	recordFenced = "FENCED"

	recordSending  = "SENDING"
	recordPrepared = "PREPARED"
	recordReleased = "RELEASED"
	recordIncoming = "INCOMING"
	recordReady    = "READY"
)
