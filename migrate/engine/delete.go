package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Delete orders that a VM is deleted once a last snapshot of it stands, or calls that off. It
// answers once that is durable. A try is a hibernate: until its commit nothing of the VM is
// given up (P-23).
func (e *Engine) Delete(ctx context.Context, req *nodev1.DeleteRequest) (*nodev1.Record, error) {
	req = proto.CloneOf(req)
	if !req.GetCancel() && req.GetDeletion().GetId() == "" {
		req.Deletion = &nodev1.Deletion{Id: uuid.NewString(), EndExecs: req.GetDeletion().GetEndExecs()}
	}
	rec, err := e.Records.Delete(ctx, req)
	if err != nil {
		return nil, err
	}
	if !req.GetCancel() {
		e.startDeletion(rec)
		return rec, nil
	}
	if op := rec.GetOperation(); op.GetDeletion() != "" {
		if r := e.running(op.GetId()); r != nil {
			r.cut()
		}
	}
	e.Events.Event(ctx, Event{Type: DeletionOff, VM: req.GetVm(), Kind: nodev1.Kind_KIND_HIBERNATE})
	return rec, nil
}

// Deletions takes up those of VMs that this node owns: after a restart, of VMs that have come
// here, and those that were ordered at another node. Call it now and then.
func (e *Engine) Deletions(ctx context.Context) error {
	all, err := e.ours(ctx)
	if err != nil {
		return err
	}
	for _, rec := range all {
		e.startDeletion(rec)
	}
	return nil
}

// deletes reports whether this node is to try, now or later.
func (e *Engine) deletes(rec *nodev1.Record) bool {
	d := rec.GetDeletion()
	return d != nil && !record.Stuck(d) && rec.GetOwner().GetNode() == e.opts.Node && !record.IsLost(rec)
}

func (e *Engine) startDeletion(rec *nodev1.Record) {
	id := rec.GetDeletion().GetId()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.deletes(rec) || e.deleting[id] || e.life.Err() != nil {
		return
	}
	e.deleting[id] = true
	e.background(func() {
		e.deletion(e.life, rec.GetVm(), id)
		e.mu.Lock()
		delete(e.deleting, id)
		e.mu.Unlock()
	})
}

// deletion tries until the order is done, has failed for good, or is not this node's any more.
func (e *Engine) deletion(ctx context.Context, vm *nodev1.VM, id string) {
	told, pause := uint32(0), e.opts.RetryMin
	for ctx.Err() == nil {
		rec, err := e.Records.Get(ctx, &nodev1.GetRequest{Vm: vm})
		if errdefs.IsNotFound(err) || err == nil && rec.GetDeletion().GetId() != id {
			return
		}
		wait := pause
		if err == nil {
			told = e.tellTry(ctx, rec, told)
			if !e.deletes(rec) {
				return
			}
			wait, err = e.tryDeletion(ctx, rec)
		}
		if pause = min(2*pause, e.opts.RetryMax); err == nil {
			pause = e.opts.RetryMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(wait, e.opts.RetryMin)):
		}
	}
}

// tellTry tells of a try that has failed since told of them had.
func (e *Engine) tellTry(ctx context.Context, rec *nodev1.Record, told uint32) uint32 {
	d := rec.GetDeletion()
	if d.GetTries() <= told {
		return told
	}
	ev := Event{Type: DeletionWaits, VM: rec.GetVm(), Operation: d.GetOperation(), Kind: nodev1.Kind_KIND_HIBERNATE}
	if ev.Reason = fmt.Sprintf("try %d: %s; the next one in %v", d.GetTries(), d.GetReason(), e.untilNext(d).Round(time.Millisecond)); record.Stuck(d) {
		ev.Type, ev.Reason = DeletionFails, fmt.Sprintf("try %d: %s; the VM stays", d.GetTries(), d.GetReason())
	}
	e.Events.Event(ctx, ev)
	return d.GetTries()
}

// tryDeletion orders the next try if its time has come, and says when to look again.
func (e *Engine) tryDeletion(ctx context.Context, rec *nodev1.Record) (time.Duration, error) {
	if op := rec.GetOperation(); op != nil {
		r := e.running(op.GetId())
		if r == nil && e.drives(op) { // the answer to its order was lost
			r = e.takeUp(op)
		}
		if r == nil { // a shim's, or the controller's
			return e.opts.RetryMax, nil
		}
		select {
		case <-r.done:
		case <-ctx.Done():
		}
		return 0, nil
	}
	d := rec.GetDeletion()
	if wait := e.untilNext(d); wait > 0 {
		return wait, nil
	}
	_, err := e.order(ctx, rec.GetVm(), "", func(now *nodev1.Record, open *nodev1.OpenRequest) error {
		op := open.GetOperation()
		op.Kind, op.Source, op.EndExecs, op.Deletion = nodev1.Kind_KIND_HIBERNATE, e.opts.Node, d.GetEndExecs(), d.GetId()
		return e.place(now, op)
	})
	if err == nil || errors.As(err, new(*record.HeldError)) || record.Transient(err) || ctx.Err() != nil {
		return 0, err
	}
	_, err = e.Records.Delete(ctx, &nodev1.DeleteRequest{
		Vm: rec.GetVm(), Uid: rec.GetUid(), Deletion: &nodev1.Deletion{Id: d.GetId(), Reason: err.Error(), Class: record.Class(err)},
	})
	return 0, err
}

// untilNext is how long the next try is put off. The clock that the last one's end was noted by
// may be another host's: it puts none off for longer than the pause is.
func (e *Engine) untilNext(d *nodev1.Deletion) time.Duration {
	if d.GetTries() == 0 {
		return 0
	}
	pause := e.opts.Again
	for range d.GetTries() - 1 {
		if pause = min(2*pause, e.opts.AgainMax); pause == e.opts.AgainMax {
			break
		}
	}
	return min(pause, time.Unix(0, d.GetTriedUnixNano()).Add(pause).Sub(e.now()))
}
