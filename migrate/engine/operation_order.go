package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Hibernate opens the operation and answers once it is durable.
func (e *Engine) Hibernate(ctx context.Context, req *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	return e.order(ctx, req.GetVm(), req.GetOperation(), func(rec *nodev1.Record, open *nodev1.OpenRequest) error {
		if err := e.checkLate(ctx, rec, "hibernate", req); err != nil {
			return err
		}
		op := open.GetOperation()
		op.Kind, op.Source, op.EndExecs = nodev1.Kind_KIND_HIBERNATE, e.opts.Node, req.GetEndExecs()
		op.Concurrency, op.Bandwidth = req.GetConcurrency(), req.GetBandwidth()
		op.PauseBudgetMs, op.TimeoutMs = req.GetPauseBudgetMs(), req.GetTimeoutMs()
		return e.place(rec, op)
	})
}

// Wake opens the operation and answers once it is durable.
func (e *Engine) Wake(ctx context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	return e.order(ctx, req.GetVm(), req.GetOperation(), func(rec *nodev1.Record, open *nodev1.OpenRequest) error {
		if err := e.fillWake(ctx, rec, req, open); err != nil {
			return err
		}
		open.Operation.Destination = e.opts.Node
		return e.readable(ctx, rec, open.GetOperation().GetDigest())
	})
}

// fillWake is what an order says of a wake, wherever it goes.
func (e *Engine) fillWake(ctx context.Context, rec *nodev1.Record, req *nodev1.WakeRequest,
	open *nodev1.OpenRequest) error {
	if err := e.checkLate(ctx, rec, "wake", req); err != nil {
		return err
	}
	op := open.GetOperation()
	op.Kind, op.Digest, op.Stdio, open.LostNode = nodev1.Kind_KIND_WAKE, req.GetDigest(), req.GetStdio(),
		req.GetLostNode()
	if req.GetLostNode() != "" && op.GetDigest() == "" {
		if op.Digest = transition.Newest(rec).GetDigest(); op.GetDigest() == "" {
			return fmt.Errorf("wake VM %s without node %s: it has no snapshot: %w", name(rec.GetVm()), req.GetLostNode(),
				errdefs.ErrFailedPrecondition)
		}
	}
	if req.GetForce() || req.GetLostNode() != "" {
		open.ForceDigest = op.GetDigest()
		op.Repository = e.opts.Repository(rec) // a digest that the record has forgotten lies where the VM's others do
	}
	return nil
}

// readable refuses a wake before anything is written if this node can never read its snapshot. Without
// a digest that is the one that owns the VM.
func (e *Engine) readable(ctx context.Context, rec *nodev1.Record, digest string) error {
	if e.Elsewhere == nil {
		return nil
	}
	for _, ref := range rec.GetSnapshots() {
		if ref.GetDigest() == cmp.Or(digest, rec.GetOwner().GetDigest()) {
			return e.Elsewhere(ctx, rec.GetVm(), ref)
		}
	}
	return nil
}

// ofLife is an order that says for which life of a VM it was given.
type ofLife interface {
	GetOperation() string
	GetUid() string
	GetGeneration() uint64
}

// checkLate refuses an order that comes late, for an earlier life of the VM: what it is about
// has run since, or is another VM of that name. One whose operation is known is said once more,
// and Open answers it.
func (e *Engine) checkLate(ctx context.Context, rec *nodev1.Record, verb string, req ofLife) error {
	sameLife := req.GetUid() == "" || req.GetUid() == rec.GetUid()
	if sameLife && (req.GetGeneration() == 0 || req.GetGeneration() == rec.GetGeneration()) {
		return nil
	}
	if req.GetOperation() != "" {
		_, err := e.Records.Operation(ctx, &nodev1.OperationRequest{Id: req.GetOperation()})
		if !errdefs.IsNotFound(err) {
			return err
		}
	}
	call := fmt.Sprintf("%s VM %s as it was at generation %d", verb, name(rec.GetVm()), req.GetGeneration())
	if !sameLife {
		call += ", under uid " + req.GetUid()
	}
	return &record.HeldError{Call: call, Record: rec}
}

// answerTime before the end of a call, its caller is told what holds the VM. Silence would say that this node hangs.
const answerTime = time.Second

// order opens an operation on the record as it stands, and drives it. An opposite
// operation that this node drives is waited for, as long as ctx leaves the time to say so.
func (e *Engine) order(ctx context.Context, vm *nodev1.VM, id string,
	fill func(*nodev1.Record, *nodev1.OpenRequest) error) (*nodev1.StatusResponse, error) {
	if id == "" {
		id = uuid.NewString()
	}
	waits := ctx
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		waits, cancel = context.WithDeadline(ctx, end.Add(-answerTime))
		defer cancel()
	}
	for {
		rec, err := e.Records.Get(ctx, &nodev1.GetRequest{Vm: vm})
		if err != nil {
			return nil, err
		}
		op := &nodev1.Operation{Id: id, Attempt: 1, Generation: rec.GetGeneration(), Managed: true}
		open := &nodev1.OpenRequest{Vm: vm, Operation: op, Uid: rec.GetUid()}
		if err := fill(rec, open); err != nil {
			return nil, err
		}
		rec, err = e.Records.Open(ctx, open)
		if err == nil {
			return e.opened(ctx, rec, id)
		}
		var held *record.HeldError
		if !errors.As(err, &held) {
			return nil, err
		}
		other := held.Record.GetOperation()
		r := e.running(other.GetId())
		if r == nil || other.GetKind() == op.GetKind() {
			return nil, err
		}
		select {
		case <-r.done:
		case <-waits.Done():
			return nil, errors.Join(ctx.Err(), err)
		}
	}
}

func (e *Engine) opened(ctx context.Context, rec *nodev1.Record, id string) (*nodev1.StatusResponse, error) {
	op := rec.GetOperation()
	if op.GetId() != id { // known and settled before
		return e.Status(ctx, id)
	}
	if op.GetPhase() == nodev1.Phase_PHASE_PENDING {
		e.Events.Event(ctx, Event{Type: Opened, Operation: id, VM: op.GetVm(), Kind: op.GetKind(), Op: op})
	}
	e.start(op, rec.GetUid(), time.Now()) // whatever the clock says by which it was opened
	return describe(op), nil
}

// Cancel ends an operation that is not committed; the step under way is cut short.
func (e *Engine) Cancel(ctx context.Context, id, reason string) (*nodev1.StatusResponse, error) {
	resp, err := e.Records.Operation(ctx, &nodev1.OperationRequest{Id: id})
	if err != nil {
		return nil, err
	}
	err = e.advance(ctx, resp.GetOperation(), &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_ABORTING, Reason: reason,
		Cancelled: true})
	if err != nil {
		return nil, fmt.Errorf("cancel operation %s: %w", id, err)
	}
	if r := e.running(id); r != nil {
		r.cut()
	}
	return e.Status(ctx, id)
}
