package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Reconcile ends what this node's record says of VMs that it no longer has: their tasks
// were deleted while the records were out of reach, or their shims died over a wake of
// their own. Call it now and then. A VM must be missing for Options.Grace, under an
// unchanged record: a Create claims it before here sees anything.
func (e *Engine) Reconcile(ctx context.Context, here func(*nodev1.VM) bool) error {
	all, err := e.Records.List(ctx, &nodev1.ListRequest{})
	if err != nil {
		return err
	}
	var errs []error
	missing := map[string]time.Time{}
	for _, rec := range all.GetRecords() {
		mine, orphan := e.concerns(rec)
		if !mine {
			if here(rec.GetVm()) && !e.drives(rec.GetOperation()) {
				errs = append(errs, e.overtaken(ctx, rec.GetVm()))
			}
			continue
		}
		if here(rec.GetVm()) {
			if orphan {
				errs = append(errs, e.confirm(ctx, rec))
			}
			continue
		}
		key, since := e.missed(rec)
		missing[key] = since
		if time.Since(since) >= e.opts.Grace {
			errs = append(errs, e.giveUpRecord(ctx, rec))
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = maps.Clone(missing)
	return errors.Join(errs...)
}

// concerns reports whether rec speaks of this node, and of a wake that no engine drives.
func (e *Engine) concerns(rec *nodev1.Record) (mine, orphan bool) {
	if op := rec.GetOperation(); op != nil {
		orphan = !op.GetManaged() && op.GetKind() == nodev1.Kind_KIND_WAKE && op.GetDestination() == e.opts.Node
		return orphan, orphan
	}
	return rec.GetOwner().GetNode() == e.opts.Node, false
}

func (e *Engine) missed(rec *nodev1.Record) (key string, since time.Time) {
	key = fmt.Sprintf("%s/%d", rec.GetUid(), rec.GetVersion())
	e.mu.Lock()
	defer e.mu.Unlock()
	if since, ok := e.gone[key]; ok {
		return key, since
	}
	return key, time.Now()
}

// confirm settles the wake of a shim that could not report that its VM runs.
func (e *Engine) confirm(ctx context.Context, rec *nodev1.Record) error {
	op := rec.GetOperation()
	if p := op.GetPhase(); p != nodev1.Phase_PHASE_COMMITTED && p != nodev1.Phase_PHASE_CLEANING {
		return nil
	}
	q, err := e.Observer.Query(ctx, op.GetVm())
	if err != nil || q.GetRecord() != recordOwn || q.GetGeneration() <= op.GetGeneration() || q.GetState() != stateRunning {
		return nil // the shim is at it
	}
	return e.finish(ctx, op, nodev1.Phase_PHASE_SUCCEEDED, "", false)
}

const missingReason = "nothing of the VM is left on its node"

func (e *Engine) giveUpRecord(ctx context.Context, rec *nodev1.Record) error {
	op := rec.GetOperation()
	if op == nil {
		_, err := e.Records.Disown(ctx, &nodev1.DisownRequest{Vm: rec.GetVm(), Node: e.opts.Node, Generation: rec.GetGeneration(), Uid: rec.GetUid()})
		if err == nil {
			e.Events.Event(ctx, Event{Type: Disowned, VM: rec.GetVm(), Reason: missingReason})
		}
		return err
	}
	switch op.GetPhase() {
	case nodev1.Phase_PHASE_COMMITTED:
		return e.finish(ctx, op, nodev1.Phase_PHASE_LOST_AT_DEST, missingReason, false)
	case nodev1.Phase_PHASE_CLEANING:
		return e.finish(ctx, op, nodev1.Phase_PHASE_SUCCEEDED, "", false)
	}
	if abortable(op.GetPhase()) {
		err := e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_ABORTING, Reason: missingReason})
		if err != nil && !errdefs.IsFailedPrecondition(err) {
			return err
		}
	}
	return e.finish(ctx, op, nodev1.Phase_PHASE_FAILED, missingReason, false)
}
