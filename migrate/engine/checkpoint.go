package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// checkpoint: capture lets the VM go on as soon as it has been read, and the commit lists the snapshot. No other
// node owns the VM meanwhile. A failure undoes only the snapshot.
var checkpoint = map[nodev1.Phase]step{
	nodev1.Phase_PHASE_PENDING:      {name: "begin", do: begin},
	nodev1.Phase_PHASE_TRANSFERRING: {name: "capture", do: capture},
	nodev1.Phase_PHASE_SWITCHING:    {name: "list", do: enlist},
	nodev1.Phase_PHASE_COMMITTED:    {name: "list", do: enlisted},
	nodev1.Phase_PHASE_CLEANING:     {name: "clean up", do: trimmed},
	nodev1.Phase_PHASE_ABORTING:     {name: "give back", do: abortCapture},
}

// Checkpoint opens the operation and answers once it is durable.
func (e *Engine) Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	return e.order(ctx, req.GetVm(), req.GetOperation(), func(rec *nodev1.Record, open *nodev1.OpenRequest) error {
		if err := e.checkLate(ctx, rec, "checkpoint", req); err != nil {
			return err
		}
		op := open.GetOperation()
		op.SnapshotName, op.Pinned, op.Manual = req.GetName(), req.GetPinned(), !req.GetScheduled()
		if op.GetSnapshotName() != "" || op.GetPinned() {
			if err := e.namesKept(ctx, rec); err != nil {
				return err
			}
		}
		op.Kind, op.Source, op.Paused = nodev1.Kind_KIND_CHECKPOINT, e.opts.Node, req.GetPaused()
		op.Concurrency, op.Bandwidth, op.PauseBudgetMs = req.GetConcurrency(), req.GetBandwidth(), req.GetPauseBudgetMs()
		op.Prefix = req.GetPrefix()
		return e.place(rec, op)
	})
}

// namesKept refuses a name or a pin while the controller is of the release before: it would forget them, unsaid.
func (e *Engine) namesKept(ctx context.Context, rec *nodev1.Record) error {
	_, err := e.Records.Pin(ctx, &nodev1.PinRequest{Vm: rec.GetVm(), Uid: rec.GetUid()})
	if errdefs.IsNotImplemented(err) {
		return fmt.Errorf("checkpoint VM %s: the controller is of a release that keeps no names and no pins. Update it "+
			"first, or leave --name and --pin away: %w", name(rec.GetVm()), errdefs.ErrFailedPrecondition)
	}
	if errdefs.IsInvalidArgument(err) { // it knows the call, and that nothing was asked
		return nil
	}
	return err
}

// place says where the snapshot of an operation goes.
func (c *core) place(rec *nodev1.Record, op *nodev1.Operation) error {
	op.Repository = c.opts.Repository(&nodev1.Record{Uid: rec.GetUid(),
		Prefix: cmp.Or(op.GetPrefix(), rec.GetPrefix())})
	op.Tag = record.SnapshotTag(rec.GetGeneration(), op.GetId(), 0)
	if op.GetRepository() == "" {
		return record.NoStore(c.opts.Node)
	}
	return nil
}

// enlist is the commit point: from here on the record names the snapshot, and no scan
// takes it for a leftover.
func enlist(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	return e.commit(ctx, op, &nodev1.Owner{Node: op.GetSource()}, "")
}

func enlisted(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	return e.advance(ctx, rec.GetOperation(), &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_CLEANING})
}

// trimmed applies the retention rule, as finishHibernate does for a hibernate.
func trimmed(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	return e.succeeded(ctx, rec, nil)
}

// Due takes the checkpoints that schedules ask for, of the VMs that this node owns. What is
// due follows from the record: its newest snapshot is long enough ago. One that fails is
// tried again after as long as that. Call it now and then.
func (e *Engine) Due(ctx context.Context) error {
	all, err := e.ours(ctx)
	if err != nil {
		return err
	}
	return e.checkpoints.due(ctx, all)
}

// checkpoints are those that the schedules of records ask for.
type checkpoints struct {
	*core
	checkpointer
	tried map[string]time.Time // by uid: when a checkpoint was last due
}

// checkpointer takes the orders of a schedule.
type checkpointer interface {
	Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error)
}

func (s *checkpoints) due(ctx context.Context, all []*nodev1.Record) error {
	var errs []error
	tried := map[string]time.Time{}
	for _, rec := range all {
		if rec.GetSchedule() == nil || rec.GetOwner().GetNode() != s.opts.Node {
			continue
		}
		every := time.Duration(rec.GetSchedule().GetEveryMs()) * time.Millisecond
		last := s.lastTry(rec, every)
		if rec.GetOperation() == nil && s.now().Sub(last) >= every {
			last = s.now()
			errs = append(errs, s.take(ctx, rec))
		}
		tried[rec.GetUid()] = last
	}
	s.tried = tried
	return errors.Join(errs...)
}

// lastTry is when a checkpoint of the VM was last taken, or tried. One that is new here
// gets its first after a whole interval. A snapshot from further ahead than that is of a
// clock that was set back since, and says nothing.
func (s *checkpoints) lastTry(rec *nodev1.Record, every time.Duration) time.Time {
	last, known := s.tried[rec.GetUid()]
	if n := len(rec.GetSnapshots()); n > 0 {
		taken := time.Unix(0, rec.GetSnapshots()[n-1].GetCreatedUnixNano())
		if taken.After(last) && taken.Sub(s.now()) <= every {
			return taken
		}
	} else if !known {
		return s.now()
	}
	return last
}

func (s *checkpoints) take(ctx context.Context, rec *nodev1.Record) error {
	ctx, cancel := context.WithTimeout(ctx, s.prompt) // to order it; it runs by itself
	defer cancel()
	_, err := s.Checkpoint(ctx, &nodev1.CheckpointRequest{Vm: rec.GetVm(), Scheduled: true})
	if err == nil || errors.As(err, new(*record.HeldError)) { // an operation was faster
		return nil
	}
	return fmt.Errorf("take the checkpoint of VM %s that is due: %w", name(rec.GetVm()), err)
}
