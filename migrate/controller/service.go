// Package controller serves the records of all VMs: a call loads a record, makes one
// transition and stores it by compare-and-swap. godwitd serves it on its local socket
// and, on the node that holds the store, to the other nodes over mutual TLS.
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/internal/turn"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Service implements nodev1.RecordsService on a store. It answers errors of errdefs'
// classes; the server of NewServer puts them on the wire.
type Service struct {
	store        store.Store
	now          func() time.Time
	policy       Policy
	tally        usage
	prefixes     prefixes
	removedNotes atomic.Uint64 // notes of removals that this controller has made
	recent       recent
}

var _ nodev1.RecordsService = (*Service)(nil)

// New serves st.
func New(st store.Store) *Service {
	return &Service{store: st, now: time.Now, tally: usage{turn: turn.New()}, prefixes: prefixes{turn: turn.New()}}
}

// conflictRetries bounds how often a call loses the compare-and-swap: each loss means
// that another call has won, so that the bound is met only under a storm on one VM.
const conflictRetries = 100

// call is one request's transition, and the nodes that may make it.
type call struct {
	vm    *nodev1.VM
	asked transition.Asked
	nodes func(transition.State) []string // nil: any node of the cluster
	first func(transition.State) error    // done before the change is made; nil: nothing
	do    func(transition.State) (transition.Change, error)
}

func (s *Service) update(ctx context.Context, c call) (*nodev1.Record, error) {
	if state, ok := s.recent.take(c); ok {
		if rec, wrote, err := s.decide(ctx, c, state); wrote && err == nil {
			return rec, nil
		}
	}
	for range conflictRetries {
		rec, err := s.try(ctx, c)
		if !errdefs.IsConflict(err) {
			return rec, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("VM %s/%s was changed by others %d times in a row. To go on, try again: "+
		"%w", c.vm.GetNamespace(), c.vm.GetId(),
		conflictRetries, errdefs.ErrUnavailable)
}

func (s *Service) try(ctx context.Context, c call) (*nodev1.Record, error) {
	state, err := s.load(ctx, c.vm, c.asked)
	if err != nil {
		return nil, err
	}
	rec, _, err := s.decide(ctx, c, state)
	return rec, err
}

// decide makes the transition from a state, and writes what it changes.
func (s *Service) decide(ctx context.Context, c call, state transition.State) (_ *nodev1.Record, wrote bool, _ error) {
	if err := transition.CheckNamed(c.vm, state.Record); err != nil {
		return nil, false, err
	}
	if c.nodes != nil {
		if err := authorize(ctx, c.nodes(state)); err != nil {
			return nil, false, err
		}
	}
	// what it answered would be the copy's word
	if err := cmp.Or(transition.Closed(state.Store), transition.Doubted(state.Store, c.vm, state.Record)); err != nil {
		return nil, false, err
	}
	change, err := c.do(state)
	if err != nil {
		return nil, false, err
	}
	change.Under = state.Store.GetVersion()
	if change.Record == state.Record {
		return state.Record, false, nil
	}
	if err := s.judge(ctx, state.Record, change); err != nil {
		return nil, false, err
	}
	if c.first != nil {
		if err := c.first(state); err != nil {
			return nil, false, err
		}
	}
	var rec *nodev1.Record
	s.recent.begin(c.vm)
	err = failpoint.Record("record", leadsTo(change), func() error {
		rec, err = s.store.Apply(ctx, c.vm, state.Record.GetVersion(), change)
		return err
	})
	s.recent.end(c.vm, state, rec, err)
	return rec, true, err
}

// leadsTo names a change by the phase of the operation that it is about.
func leadsTo(c transition.Change) string {
	phase := c.Record.GetOperation().GetPhase()
	if c.Closed != nil {
		phase = c.Closed.GetPhase()
	}
	if phase == nodev1.Phase_PHASE_UNSPECIFIED {
		return "OWNER"
	}
	return strings.TrimPrefix(phase.String(), "PHASE_")
}

// List implements nodev1.RecordsService. What a node asks for in each of its rounds costs what it
// is answered, however many records there are.
func (s *Service) List(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	which := store.Which{Node: req.GetNode(), Moves: req.GetMoves(), UIDs: req.GetUids(), Deleter: req.GetPayer()}
	some := which.Node != "" || which.Moves || len(which.UIDs) > 0
	end, err := listing(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	switch {
	case !req.GetParts() && !some:
		room := 0
		if _, remote := Peer(ctx); remote {
			room = 2 * MaxAnswer // what is more than that is refused
		}
		all, err := s.list(ctx, "", room)
		resp := &nodev1.ListResponse{Records: all}
		return resp, unread(resp, err)
	case !some:
		all, err := s.list(ctx, req.GetAfter(), read)
		resp := partOf(all, "")
		if err = unread(resp, err); err != nil {
			return nil, err
		}
		return resp, nil
	}
	found, err := s.find(ctx, which, req.GetCached())
	if err != nil {
		return nil, err
	}
	resp := &nodev1.ListResponse{Records: found.Records}
	if req.GetParts() {
		resp = partOf(found.Records, req.GetAfter())
	}
	resp.Owes = found.HasDeletions
	return resp, whole(req, resp, found)
}

func partOf(all []*nodev1.Record, last string) *nodev1.ListResponse {
	some, next := after(all, last, func(r *nodev1.Record) string { return place(r.GetVm()) })
	return &nodev1.ListResponse{Records: some, Next: next}
}

// Operation implements nodev1.RecordsService.
func (s *Service) Operation(ctx context.Context, req *nodev1.OperationRequest) (*nodev1.OperationResponse, error) {
	op, err := s.store.Operation(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	return &nodev1.OperationResponse{Operation: op}, nil
}

// Ensure implements nodev1.RecordsService.
func (s *Service) Ensure(ctx context.Context, req *nodev1.EnsureRequest) (*nodev1.Record, error) {
	uid := uuid.NewString()
	c := call{vm: req.GetVm(), do: func(st transition.State) (transition.Change, error) {
		return transition.Ensure(st, req, uid)
	}}
	if req.GetUid() != "" || req.GetNode() != "" || transition.OfClass(req) || req.GetRestoreFrom() != nil {
		c.nodes = controllerOnly
		if req.GetNode() != "" {
			c.nodes = only(req.GetNode())
		}
		if err := authorize(ctx, c.nodes(transition.State{})); err != nil {
			return nil, err
		}
		if err := s.unused(ctx, req); err != nil {
			return nil, err
		}
	}
	return s.update(ctx, c)
}

// unused refuses the uid of a VM that has or had a record under another name: what a VM stores lies below
// its uid, and who has that uid in its record may delete it.
func (s *Service) unused(ctx context.Context, req *nodev1.EnsureRequest) error {
	if err := transition.CheckVM(req.GetVm()); err != nil {
		return err
	}
	uid := req.GetUid()
	refuse := func(why string) error {
		return fmt.Errorf("give VM %s/%s the uid %.40q: %s: %w", req.GetVm().GetNamespace(), req.GetVm().GetId(), uid, why,
			errdefs.ErrInvalidArgument)
	}
	if !record.IsUUID(uid) { // what its VM stores lies below it. That of a member the operator gives
		return refuse("it is no UUID")
	}
	why, err := s.used(ctx, req.GetVm(), uid)
	if err == nil && why != "" {
		err = refuse(why)
	}
	return err
}

// Own implements nodev1.RecordsService.
func (s *Service) Own(ctx context.Context, req *nodev1.OwnRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), nodes: only(req.GetNode()),
		do: func(st transition.State) (transition.Change, error) {
			return transition.Own(st, req)
		}})
}

// Disown implements nodev1.RecordsService.
func (s *Service) Disown(ctx context.Context, req *nodev1.DisownRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), nodes: only(req.GetNode()),
		do: func(st transition.State) (transition.Change, error) {
			return transition.EndOwnership(st, req)
		}})
}

// Open implements nodev1.RecordsService. To call a node lost is the controller's own, and to have an operation placed.
func (s *Service) Open(ctx context.Context, req *nodev1.OpenRequest) (*nodev1.Record, error) {
	op, nodes := req.GetOperation(), only(drivers(req.GetOperation())...)
	// A lost node: it takes a VM from its node, by godwit recover, which looks at that node first.
	if req.GetLostNode() != "" || op.GetByPlace() {
		nodes = controllerOnly
	}
	return s.update(ctx,
		call{vm: req.GetVm(), asked: transition.Asked{Operation: op.GetId(),
			PendingDeletions: op.GetKind() == nodev1.Kind_KIND_WAKE}, nodes: nodes,
			do: func(st transition.State) (transition.Change, error) {
				return transition.Open(st, req, s.now())
			}})
}

// Advance implements nodev1.RecordsService.
func (s *Service) Advance(ctx context.Context, req *nodev1.AdvanceRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), asked: transition.Asked{Operation: req.GetOperation()}, nodes: parties,
		do: func(st transition.State) (transition.Change, error) {
			return transition.Advance(st, req, s.now())
		}})
}

// Place implements nodev1.RecordsService. It is the controller's own: who places a VM has it.
func (s *Service) Place(ctx context.Context, req *nodev1.PlaceRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), asked: transition.Asked{Operation: req.GetOperation()},
		nodes: controllerOnly,
		do: func(st transition.State) (transition.Change, error) {
			return transition.Place(st, req, s.now())
		}})
}

// Commit implements nodev1.RecordsService.
func (s *Service) Commit(ctx context.Context, req *nodev1.CommitRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), asked: transition.Asked{Operation: req.GetOperation()}, nodes: parties,
		do: func(st transition.State) (transition.Change, error) {
			return transition.Commit(st, req, s.now())
		}})
}

// Finish implements nodev1.RecordsService.
func (s *Service) Finish(ctx context.Context, req *nodev1.FinishRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), asked: transition.Asked{Operation: req.GetOperation()}, nodes: parties,
		do: func(st transition.State) (transition.Change, error) {
			return transition.Finish(st, req, s.now())
		}})
}

// Retry implements nodev1.RecordsService.
func (s *Service) Retry(ctx context.Context, req *nodev1.RetryRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), asked: transition.Asked{Operation: req.GetOperation()}, nodes: parties,
		do: func(st transition.State) (transition.Change, error) {
			return transition.Retry(st, req, s.now())
		}})
}

// Trim implements nodev1.RecordsService.
func (s *Service) Trim(ctx context.Context, req *nodev1.TrimRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), nodes: holders, do: func(st transition.State) (transition.Change, error) {
		return transition.Trim(st, req, s.now())
	}})
}

// Pin implements nodev1.RecordsService.
func (s *Service) Pin(ctx context.Context, req *nodev1.PinRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), nodes: holders, do: func(st transition.State) (transition.Change, error) {
		return transition.Pin(st, req)
	}})
}

// Name implements nodev1.RecordsService.
func (s *Service) Name(ctx context.Context, req *nodev1.NameRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), nodes: holders, do: func(st transition.State) (transition.Change, error) {
		return transition.Name(st, req)
	}})
}

// Schedule implements nodev1.RecordsService.
func (s *Service) Schedule(ctx context.Context, req *nodev1.ScheduleRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), nodes: holders, do: func(st transition.State) (transition.Change, error) {
		return transition.Schedule(st, req)
	}})
}

// Delete implements nodev1.RecordsService.
func (s *Service) Delete(ctx context.Context, req *nodev1.DeleteRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), nodes: holders, do: func(st transition.State) (transition.Change, error) {
		return transition.Delete(st, req, s.now())
	}})
}

// Reclaim implements nodev1.RecordsService. It is the controller's own, as moves are.
func (s *Service) Reclaim(ctx context.Context, req *nodev1.ReclaimRequest) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: req.GetVm(), nodes: controllerOnly,
		do: func(st transition.State) (transition.Change, error) {
			return transition.Reclaim(st, req, s.now())
		}})
}

// Owed implements nodev1.RecordsService.
func (s *Service) Owed(ctx context.Context, req *nodev1.OwedRequest) (*nodev1.OwedResponse, error) {
	end, err := listing(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	all, err := s.store.PendingDeletions(ctx, store.WhichDeletions{VM: req.GetVm(), Deleter: req.GetPayer()})
	if errors.As(err, new(*store.UnreadError)) && req.GetPayer() != "" { // it carries out what is listed, and no more
		err = nil
	}
	if err != nil || !req.GetParts() {
		return &nodev1.OwedResponse{Owed: all}, err
	}
	part, next := after(all, req.GetAfter(), func(o *nodev1.Owed) string {
		return place(o.GetVm(), o.GetSnapshot().GetRepository(), o.GetSnapshot().GetDigest())
	})
	return &nodev1.OwedResponse{Owed: part, Next: next}, nil
}

// Clear implements nodev1.RecordsService. What is not pending was cleared before, for any caller.
func (s *Service) Clear(ctx context.Context, req *nodev1.ClearRequest) (*nodev1.ClearResponse, error) {
	state, err := s.load(ctx, req.GetVm(), transition.Asked{PendingDeletions: true})
	if err != nil {
		return nil, err
	}
	for _, o := range state.PendingDeletions {
		if o.GetSnapshot().GetRepository() != req.GetRepository() || o.GetSnapshot().GetDigest() != req.GetDigest() ||
			o.GetHold() != nil {
			continue
		}
		if err := authorize(ctx, deleters(o)); err != nil {
			return nil, fmt.Errorf("clear snapshot %s of VM %s/%s: %w", req.GetDigest(), req.GetVm().GetNamespace(),
				req.GetVm().GetId(), err)
		}
		return &nodev1.ClearResponse{}, s.store.Clear(ctx, o.GetVm(), req.GetRepository(), req.GetDigest())
	}
	return &nodev1.ClearResponse{}, transition.CheckNamed(req.GetVm(), nil)
}
