package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Migrate opens a move and answers once it is durable. A known id is the same move: with
// another destination it is turned there (R6).
func (e *Engine) Migrate(ctx context.Context, req *nodev1.MigrateRequest) (*nodev1.StatusResponse, error) {
	if err := transition.CheckVM(req.GetVm()); err != nil {
		return nil, err
	}
	if err := moves.Check(req); err != nil {
		return nil, fmt.Errorf("move VM %s: %w", name(req.GetVm()), err)
	}
	if id := req.GetOperation(); id != "" {
		known, err := e.Records.Operation(ctx, &nodev1.OperationRequest{Id: id})
		if err == nil {
			return e.again(ctx, known.GetOperation(), req)
		}
		if !errdefs.IsNotFound(err) {
			return nil, err
		}
	}
	rec, err := e.Records.Get(ctx, &nodev1.GetRequest{Vm: req.GetVm()})
	if err != nil {
		return nil, err
	}
	if open := rec.GetOperation(); open != nil {
		if open.GetId() == req.GetOperation() { // ordered twice at once
			return e.again(ctx, open, req)
		}
		return nil, &record.HeldError{Call: "move VM " + name(req.GetVm()), Record: rec}
	}
	op := &nodev1.Operation{
		Id: req.GetOperation(), Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Generation: rec.GetGeneration(), Managed: true,
		Source: rec.GetOwner().GetNode(), Destination: req.GetTo(), Mode: cmp.Or(req.GetMode(), moves.ModeAuto),
		DowntimeMs: req.GetDowntimeMs(), TimeoutMs: req.GetTimeoutMs(), Bandwidth: req.GetBandwidth(),
		AbortOn:  req.GetAbortOn(),
		EndExecs: req.GetEndExecs(), Stdio: req.GetStdio(), Driver: e.opts.Node,
	}
	if op.GetId() == "" {
		op.Id = uuid.NewString()
	}
	if op.ByPlace, err = e.ByPlace(ctx, rec); err != nil {
		return nil, err
	}
	if op.GetByPlace() {
		op.Wish, op.Destination = op.GetDestination(), ""
	}
	if err := e.movable(ctx, rec, op); err != nil {
		return nil, fmt.Errorf("move VM %s: %w", name(req.GetVm()), err)
	}
	rec, err = e.Records.Open(ctx, &nodev1.OpenRequest{Vm: req.GetVm(), Operation: op, Uid: rec.GetUid()})
	if err != nil {
		return nil, err
	}
	return e.opened(ctx, rec, op.GetId())
}

// movable refuses what cannot become a move, before anything is written, and chooses
// where it goes if the order does not say.
func (e *Engine) movable(ctx context.Context, rec *nodev1.Record, op *nodev1.Operation) error {
	switch {
	case rec.GetOwner().GetNode() == "": // it sleeps, or runs nowhere
		return &record.HeldError{Call: "move", Record: rec}
	case op.GetMode() == moves.ModeCold && e.opts.Repository(rec) == "":
		return record.NoStore(op.GetSource())
	}
	to := cmp.Or(op.GetDestination(), op.GetWish())
	switch {
	case to == op.GetSource():
		return fmt.Errorf("it is on node %s already. To move it, name another node: godwit nodes: "+
			"%w", op.GetSource(), errdefs.ErrInvalidArgument)
	case to == "" && op.GetByPlace():
		return nil
	case to == "":
		var err error
		if to, err = e.Choose(ctx, op.GetSource()); err != nil {
			return err
		}
		op.Destination = to
	}
	return e.placement.takes(to)
}

// Choose answers the node that takes VMs and has the most room for each VM on its way there, this VM included. The
// nodes of but are left out. What a node announces counts none that was just ordered: without them all VMs of a
// drain would go to one node.
func (p *placement) Choose(ctx context.Context, but ...string) (string, error) {
	all := slices.DeleteFunc(p.Peers.Nodes(), func(n *nodev1.NodeInfo) bool {
		return slices.Contains(but, n.GetName()) || Takes(n) != nil
	})
	if len(all) == 0 {
		return "", fmt.Errorf("no other node takes VMs. To see why: godwit nodes: %w", errdefs.ErrUnavailable)
	}
	recs, err := p.Records.List(ctx, &nodev1.ListRequest{})
	if err != nil {
		return "", err
	}
	comes := arriving(recs.GetRecords())
	best := slices.MaxFunc(all, func(a, b *nodev1.NodeInfo) int {
		room := func(n *nodev1.NodeInfo) uint64 { return n.GetFreeBytes() / (1 + comes[n.GetName()]) }
		return cmp.Or(cmp.Compare(room(a), room(b)), cmp.Compare(comes[b.GetName()], comes[a.GetName()]))
	})
	return best.GetName(), nil
}

// arriving counts the VMs that open operations take to each node.
func arriving(all []*nodev1.Record) map[string]uint64 {
	count := map[string]uint64{}
	for _, rec := range all {
		op := rec.GetOperation()
		switch {
		case op.GetRetarget() != "":
			count[op.GetRetarget()]++
		case op.GetDestination() != "" && abortable(op.GetPhase()):
			count[op.GetDestination()]++
		}
	}
	return count
}

// again is a second order under the id of the first.
func (e *Engine) again(ctx context.Context, op *nodev1.Operation, req *nodev1.MigrateRequest) (*nodev1.StatusResponse,
	error) {
	heading := cmp.Or(op.GetRetarget(), op.GetDestination(), op.GetWish())
	switch {
	case op.GetKind() != nodev1.Kind_KIND_MIGRATE || name(op.GetVm()) != name(req.GetVm()):
		return nil, fmt.Errorf("move VM %s: operation %s is a %s of VM %s: %w", name(req.GetVm()), op.GetId(), op.GetKind(),
			name(op.GetVm()), errdefs.ErrAlreadyExists)
	case transition.Settled(op.GetPhase()):
		return e.Status(ctx, op.GetId())
	case req.GetTo() == "" || req.GetTo() == heading:
		if e.drives(op) { // the answer of its Open may have been lost
			e.takeUp(op, "")
		}
		return e.Status(ctx, op.GetId())
	case transition.Committed(op.GetPhase()):
		return nil, fmt.Errorf("turn operation %s to node %s: it is committed to node %s; move it from there: %w", op.GetId(),
			req.GetTo(), op.GetDestination(), errdefs.ErrFailedPrecondition)
	case req.GetTo() == op.GetSource():
		return e.Cancel(ctx, op.GetId(), "it was ordered back to its source")
	}
	if err := e.placement.takes(req.GetTo()); err != nil {
		return nil, fmt.Errorf("turn operation %s: %w", op.GetId(), err)
	}
	err := e.advance(ctx, op, &nodev1.AdvanceRequest{
		Phase: nodev1.Phase_PHASE_ABORTING, Retarget: req.GetTo(), Reason: "it was turned to node " + req.GetTo(),
	})
	if err != nil {
		return nil, fmt.Errorf("turn operation %s to node %s: %w", op.GetId(), req.GetTo(), err)
	}
	if r := e.running(op.GetId()); r != nil {
		r.cut()
	}
	return e.Status(ctx, op.GetId())
}
