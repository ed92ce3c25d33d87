package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// wake: the digest owns the VM until the shim of the new task commits, in Start, before
// it lets the VM run.
var wake = map[nodev1.Phase]step{
	nodev1.Phase_PHASE_PENDING:      {name: "find snapshot", do: find, patient: true},
	nodev1.Phase_PHASE_TRANSFERRING: {name: "restore", do: create, patient: true},
	nodev1.Phase_PHASE_SWITCHING:    {name: "start", do: startTask},
	nodev1.Phase_PHASE_COMMITTED:    {name: "observe", do: observe},
	nodev1.Phase_PHASE_CLEANING:     {name: "clean up", do: awake},
	nodev1.Phase_PHASE_ABORTING:     {name: "undo", do: undo},
	nodev1.Phase_PHASE_REVERTING:    {name: "undo", do: undo},
}

func restore(op *nodev1.Operation) Restore {
	return Restore{
		Intent:     record.Intent{Operation: op.GetId(), Attempt: op.GetAttempt(), Digest: op.GetDigest()},
		Repository: op.GetRepository(), Stdio: op.GetStdio(),
	}
}

// find asks for the snapshot before anything is made. An error is not "not there" (R5).
func find(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	there, err := e.Snapshots.Exists(ctx, op.GetRepository(), op.GetDigest())
	if err != nil {
		return err
	}
	if !there {
		return fmt.Errorf("snapshot %s is not in %s: %w", op.GetDigest(), op.GetRepository(), errdefs.ErrNotFound)
	}
	return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_TRANSFERRING})
}

func create(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	err := e.Tasks.Create(ctx, op.GetVm(), restore(op))
	switch {
	case errdefs.IsUnavailable(err) && e.givenUp(ctx, op):
		return fmt.Errorf("the sandbox that waited for VM %s on node %s was removed, or its shim has died: order the wake "+
			"again: %w", name(op.GetVm()), e.opts.Node, errdefs.ErrFailedPrecondition)
	case err != nil:
		return err
	}
	return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_SWITCHING})
}

// givenUp reports whether a shim of this node has written down that the attempt never runs here. The sandbox of a pod
// is made by CRI, whose errors no engine hears.
func (e *Engine) givenUp(ctx context.Context, op *nodev1.Operation) bool {
	q, err := e.Observer.Query(ctx, op.GetVm())
	return err == nil && q.GetRecord() == recordFenced && sameRef(q.GetRef(), op)
}

// startTask lets the shim commit and the VM run. Whatever Start answered, the record
// says which it was.
func startTask(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	started := e.Tasks.Start(ctx, op.GetVm())
	now, err := e.Records.Get(ctx, &nodev1.GetRequest{Vm: op.GetVm()})
	switch {
	case err != nil && started == nil:
		return records(err)
	case err == nil && now.GetOperation().GetPhase() == nodev1.Phase_PHASE_COMMITTED && started == nil:
		return e.ran(ctx, op)
	case err == nil && now.GetOperation().GetPhase() != op.GetPhase():
		return nil
	case started != nil:
		return started
	}
	return e.commit(ctx, op, &nodev1.Owner{Node: op.GetDestination()}, "")
}

// observe looks after a Start that committed and whose answer was bad or lost. There is no way back but a fence
// that the destination wrote before it ran anything. A VM that may have run and is not running is lost (R9).
func observe(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	running, err := e.Tasks.Running(ctx, op.GetVm())
	if err != nil {
		return err
	}
	if running {
		return e.ran(ctx, op)
	}
	q, err := e.Observer.Query(ctx, op.GetVm())
	mine := sameRef(q.GetRef(), op)
	switch {
	case errdefs.IsNotFound(err):
		return e.lost(ctx, rec, nodev1.Phase_PHASE_LOST_AT_DEST, "the VM is gone from its destination after the commit")
	case err != nil:
		return err
	case q.GetRecord() == recordFenced && mine:
		return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_REVERTING,
			Reason: "the destination fenced itself before it ran the VM"})
	case q.GetRecord() == recordOwn && q.GetState() == stateStopped:
		return e.lost(ctx, rec, nodev1.Phase_PHASE_LOST_AT_DEST, "the VM ended at its destination after the commit")
	case q.GetRecord() == recordOwn && q.GetState() == stateRunning && !q.GetAdopted() && mine: // a pod's, by CRI
		return e.ran(ctx, op)
	case q.GetRecord() == recordOwn && q.GetAdopted() && mine: // its shim died, and containerd has no task to start
		if q.GetState() == stateRunning {
			return e.ran(ctx, op)
		}
		return fmt.Errorf("the successor of its shim takes the wake to its end, the VM is %s: %w", q.GetState(),
			errdefs.ErrUnavailable)
	}
	if err := e.Tasks.Start(ctx, op.GetVm()); err != nil {
		return err
	}
	return fmt.Errorf("started, not seen running: %w", errdefs.ErrUnavailable)
}

// States that the engine looks for, as the shims name them.
const (
	stateRunning  = "running"
	stateStopped  = "stopped"
	stateAborting = "aborting" // its record is OWN again, and it does not run yet
)

func (e *Engine) ran(ctx context.Context, op *nodev1.Operation) error {
	receipt := record.Receipt{
		Operation: op.GetId(), Attempt: op.GetAttempt(), Generation: op.GetGeneration(), Digest: op.GetDigest(),
		WakeMS: float64(time.Now().UnixNano()-op.GetOpenedUnixNano()) / float64(time.Millisecond),
	}
	return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_CLEANING, Receipt: receipt.String()})
}

// awake settles. The snapshot stays, as the retention rule says, until the next one.
func awake(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	return e.finish(ctx, rec.GetOperation(), nodev1.Phase_PHASE_SUCCEEDED, "", false)
}

// undo removes what was made; the digest owns the VM.
func undo(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	if err := e.Tasks.Undo(ctx, op.GetVm(), restore(op)); err != nil {
		return err
	}
	return e.unwound(ctx, op)
}
