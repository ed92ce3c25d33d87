package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/retry"
)

// Delete orders that a VM is deleted once a last snapshot of it stands, or calls that off. It
// answers once that is durable. A try is a hibernate: until its commit nothing of the VM is
// given up.
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
		e.deletions.start(rec)
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
		e.deletions.start(rec)
	}
	return nil
}

// deletions are the orders to delete a VM once a last snapshot of it stands, of the VMs of this node.
type deletions struct {
	*core
	operations

	mu   sync.Mutex
	open map[string]bool // by id: those that are seen to
}

// operations are the hibernates that deletions order, and wait for.
type operations interface {
	order(ctx context.Context, vm *nodev1.VM, id string,
		fill func(*nodev1.Record, *nodev1.OpenRequest) error) (*nodev1.StatusResponse, error)
	// current answers the run of an open operation that this node drives; nil: it drives none.
	current(op *nodev1.Operation) *run
	// work does something until Close, in the background; false: it was closed.
	work(do func(ctx context.Context)) bool
}

// deletes reports whether this node is to try, now or later.
func (ds *deletions) deletes(rec *nodev1.Record) bool {
	d := rec.GetDeletion()
	return d != nil && !record.Stuck(d) && rec.GetOwner().GetNode() == ds.opts.Node && !record.IsLost(rec)
}

// start sees to a deletion in the background, once.
func (ds *deletions) start(rec *nodev1.Record) {
	id := rec.GetDeletion().GetId()
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if !ds.deletes(rec) || ds.open[id] {
		return
	}
	ds.open[id] = ds.work(func(ctx context.Context) {
		ds.deletion(ctx, rec.GetVm(), id)
		ds.mu.Lock()
		delete(ds.open, id)
		ds.mu.Unlock()
	})
}

// deletion tries until the order is done, has failed for good, or is not this node's any more.
func (ds *deletions) deletion(ctx context.Context, vm *nodev1.VM, id string) {
	told, pause := uint32(0), ds.opts.RetryMin
	for ctx.Err() == nil {
		rec, err := ds.Records.Get(ctx, &nodev1.GetRequest{Vm: vm})
		if errdefs.IsNotFound(err) || err == nil && rec.GetDeletion().GetId() != id {
			return
		}
		wait := pause
		if err == nil {
			told = ds.tellTry(ctx, rec, told)
			if !ds.deletes(rec) {
				return
			}
			wait, err = ds.tryDeletion(ctx, rec)
		}
		if pause = min(2*pause, ds.opts.RetryMax); err == nil {
			pause = ds.opts.RetryMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(wait, ds.opts.RetryMin)):
		}
	}
}

// tellTry tells of a try that has failed since told of them had.
func (ds *deletions) tellTry(ctx context.Context, rec *nodev1.Record, told uint32) uint32 {
	d := rec.GetDeletion()
	if d.GetTries() <= told {
		return told
	}
	ev := Event{Type: DeletionWaits, VM: rec.GetVm(), Operation: d.GetOperation(), Kind: nodev1.Kind_KIND_HIBERNATE}
	if ev.Reason = fmt.Sprintf("try %d: %s; the next one in %v", d.GetTries(), d.GetReason(),
		ds.untilNext(d).Round(time.Millisecond)); record.Stuck(d) {
		ev.Type, ev.Reason = DeletionFails, fmt.Sprintf("try %d: %s; the VM stays", d.GetTries(), d.GetReason())
	}
	ds.Events.Event(ctx, ev)
	return d.GetTries()
}

// tryDeletion orders the next try if its time has come, and says when to look again.
func (ds *deletions) tryDeletion(ctx context.Context, rec *nodev1.Record) (time.Duration, error) {
	if op := rec.GetOperation(); op != nil {
		r := ds.current(op)
		if r == nil { // a shim's, or the controller's
			return ds.opts.RetryMax, nil
		}
		select {
		case <-r.done:
		case <-ctx.Done():
		}
		return 0, nil
	}
	d := rec.GetDeletion()
	if wait := ds.untilNext(d); wait > 0 {
		return wait, nil
	}
	_, err := ds.order(ctx, rec.GetVm(), "", func(now *nodev1.Record, open *nodev1.OpenRequest) error {
		op := open.GetOperation()
		op.Kind, op.Source, op.EndExecs, op.Deletion = nodev1.Kind_KIND_HIBERNATE, ds.opts.Node, d.GetEndExecs(), d.GetId()
		return ds.place(now, op)
	})
	if err == nil || errors.As(err, new(*record.HeldError)) || record.Transient(err) || ctx.Err() != nil {
		return 0, err
	}
	_, err = ds.Records.Delete(ctx, &nodev1.DeleteRequest{
		Vm: rec.GetVm(), Uid: rec.GetUid(), Deletion: &nodev1.Deletion{Id: d.GetId(), Reason: err.Error(),
			Class: record.Class(err)},
	})
	return 0, err
}

// untilNext is how long the next try is put off. The clock that the last one's end was noted by
// may be another host's: it puts none off for longer than the pause is.
func (ds *deletions) untilNext(d *nodev1.Deletion) time.Duration {
	if d.GetTries() == 0 {
		return 0
	}
	again := retry.Backoff{Min: ds.opts.Again, Max: ds.opts.AgainMax}
	pause := again.Next()
	for range d.GetTries() - 1 {
		if again.Longest() {
			break
		}
		pause = again.Next()
	}
	return min(pause, time.Unix(0, d.GetTriedUnixNano()).Add(pause).Sub(ds.now()))
}
