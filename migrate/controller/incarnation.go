package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// load reads a record as it is under the store's incarnation.
func (s *Service) load(ctx context.Context, vm *nodev1.VM, asked transition.Asked) (transition.State, error) {
	state, err := s.store.Load(ctx, vm, asked)
	state.Record = transition.Lift(state.Record, state.Store.GetIncarnation())
	return state, err
}

func (s *Service) list(ctx context.Context, after string, room int) ([]*nodev1.Record, error) {
	state, err := s.store.State(ctx)
	if err != nil {
		return nil, err
	}
	all, err := s.store.List(ctx, after, room)
	return lifted(all, state), err
}

// find answers some records. cached takes those of a moment ago.
func (s *Service) find(ctx context.Context, which store.Which, cached bool) (store.Found, error) {
	if m, ok := s.store.(store.Mirror); ok && cached {
		if found, fresh := m.FindCached(which); fresh {
			found.Records = lifted(found.Records, found.State)
			return found, nil
		}
	}
	found, err := s.store.Find(ctx, which)
	found.Records = lifted(found.Records, found.State)
	return found, err
}

func lifted(all []*nodev1.Record, state *nodev1.StoreState) []*nodev1.Record {
	for i := range all {
		all[i] = transition.Lift(all[i], state.GetIncarnation())
	}
	return all
}

// SettleDelay is how long after Restore nothing is settled: every node that lives has announced itself
// by then, also one that the copy does not know.
const SettleDelay = 20 * time.Second

// wait is how long this controller has seen that the store waits, by its own clock: the one that
// ordered it may have had another.
type wait struct {
	mu          sync.Mutex
	incarnation uint64
	began       time.Time
}

func (w *wait) lasted(incarnation uint64, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.began.IsZero() || w.incarnation != incarnation {
		w.incarnation, w.began = incarnation, now
	}
	return now.Sub(w.began)
}

// kindReport is of the notes that nodes' reports are: incarnation/node -> ReportRequest.
const kindReport = "report"

// Incarnations implements nodev1.StoreService: what the store is as a whole, which may have been
// put back from a copy.
type Incarnations struct {
	store store.Store
	notes store.Notes
	self  string          // the controller's own node
	known func() []string // nodes that have announced themselves
	now   func() time.Time
	told  stateCache

	// Unchecked are other controllers that are up and would admit claims while the store waits; nil: none.
	Unchecked func() []string
	// Reserved are names under which no report makes a record that a node owns (Policy); nil: none is.
	Reserved func(vm *nodev1.VM) bool
	// Contradicts is told of a node whose word the records do not bear out, once; nil: it is not told.
	Contradicts func(node, reason string)

	settling sync.Mutex
	raised   raisedDoubts
	wait     wait

	mu        sync.Mutex
	reporting map[string]bool // nodes whose report is being looked at
	repeats   map[string]int  // by node: reports of what was refuted before
	named     map[string]bool // nodes of which Contradicts was told
}

var _ nodev1.StoreService = (*Incarnations)(nil)

// NewIncarnations serves a store that keeps notes too; now is the clock, nil: the host's.
func NewIncarnations(st store.Store, notes store.Notes, self string, known func() []string,
	now func() time.Time) *Incarnations {
	if now == nil {
		now = time.Now
	}
	return &Incarnations{store: st, notes: notes, self: self, known: known, now: now, told: stateCache{store: st},
		raised: raisedDoubts{at: map[string][]time.Time{}}, reporting: map[string]bool{}, repeats: map[string]int{},
		named: map[string]bool{}}
}

// State implements nodev1.StoreService. It settles what waits for that.
func (i *Incarnations) State(ctx context.Context, _ *nodev1.StateRequest) (*nodev1.StoreState, error) {
	if err := i.Maintain(ctx); err != nil {
		return nil, err
	}
	state, err := i.store.State(ctx)
	if err == nil && state.GetWaiting() {
		state.Missing = union(state.GetMissing(), i.unchecked())
	}
	return state, err
}

// ErrUnchecked says that another controller would admit claims while the store waits.
var ErrUnchecked = errors.New("a controller of an earlier build is up")

func (i *Incarnations) unchecked() []string {
	if i.Unchecked == nil {
		return nil
	}
	return i.Unchecked()
}

// change is a compare-and-swap of the store's state; do changes a copy of it, or answers false
// where nothing is to be changed.
func (i *Incarnations) change(ctx context.Context, do func(*nodev1.StoreState) (bool, error)) (*nodev1.StoreState,
	error) {
	for range conflictRetries {
		before, err := i.store.State(ctx)
		if err != nil {
			return nil, err
		}
		state := proto.CloneOf(before)
		if changed, err := do(state); err != nil || !changed {
			return before, err
		}
		after, err := i.store.SetState(ctx, before.GetVersion(), state)
		i.told.forget(nil)
		if !errdefs.IsConflict(err) {
			return after, err
		}
	}
	return nil, fmt.Errorf("change state of the store: %d conflicts in a row: %w", conflictRetries, errdefs.ErrUnavailable)
}

// Restore implements nodev1.StoreService.
func (i *Incarnations) Restore(ctx context.Context, req *nodev1.RestoreRequest) (*nodev1.StoreState, error) {
	if err := authorize(ctx, []string{}); err != nil {
		return nil, err
	}
	if names := i.unchecked(); len(names) > 0 {
		return nil, fmt.Errorf("restore the store: %w: nodes %s do not look at the store's own state, and would admit "+
			"claims meanwhile: stop or upgrade godwitd there, and give the order again once they are silent: %w",
			ErrUnchecked, strings.Join(names, ", "), errdefs.ErrFailedPrecondition)
	}
	nodes, err := i.nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, node := range req.GetRetire() {
		if err := i.retirable(node, nodes); err != nil {
			return nil, err
		}
	}
	now := i.now()
	state, err := i.change(ctx, func(state *nodev1.StoreState) (bool, error) {
		next := max(state.GetIncarnation()+1, uint64(max(0, now.Unix())))
		if next > record.MaxIncarnation {
			return false, fmt.Errorf("restore the store: incarnation %d is none; is the clock of this host right (%s)?: %w",
				next, now.UTC().Format(time.RFC3339), errdefs.ErrFailedPrecondition)
		}
		missing := slices.DeleteFunc(union(nodes, state.GetMissing()), func(n string) bool {
			return slices.Contains(req.GetRetire(), n)
		})
		retired := slices.Clone(req.GetRetire())
		slices.Sort(retired)
		*state = nodev1.StoreState{Incarnation: next, SinceUnixNano: now.UnixNano(), Waiting: true, Missing: missing,
			Retired: slices.Compact(retired)} //nolint:govet // a message that no other goroutine has
		return true, nil
	})
	if err == nil {
		i.wait.lasted(state.GetIncarnation(), now)
	}
	return state, err
}

// nodes are all that the store knows of: those that announced themselves, and those that records
// name.
func (i *Incarnations) nodes(ctx context.Context) ([]string, error) {
	all, err := i.store.List(ctx, "", 0)
	if err != nil {
		return nil, err
	}
	named := []string{i.self}
	for _, rec := range all {
		op := rec.GetOperation()
		named = append(named, rec.GetOwner().GetNode(), op.GetSource(), op.GetDestination(), rec.GetKept().GetNode())
	}
	return union(i.known(), named), nil
}

// union of names, in order.
func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(n string) bool { return n == "" })
}

func (i *Incarnations) retirable(node string, nodes []string) error {
	switch {
	case node == i.self:
		return fmt.Errorf("retire node %q: it is the controller itself, which reports as every node does: %w", node,
			errdefs.ErrInvalidArgument)
	case !slices.Contains(nodes, node):
		return fmt.Errorf("retire node %q: the store knows none of that name, but %s: %w", node, strings.Join(nodes, ", "),
			errdefs.ErrInvalidArgument)
	}
	return nil
}

// Retire implements nodev1.StoreService.
func (i *Incarnations) Retire(ctx context.Context, req *nodev1.RetireRequest) (*nodev1.StoreState, error) {
	if err := authorize(ctx, []string{}); err != nil {
		return nil, err
	}
	nodes, err := i.nodes(ctx)
	if err != nil {
		return nil, err
	}
	state, err := i.change(ctx, func(state *nodev1.StoreState) (bool, error) {
		node := req.GetNode()
		if err := i.retirable(node, union(nodes, state.GetMissing())); err != nil {
			return false, err
		}
		of := func(d *nodev1.Doubt) bool { return d.GetNode() == node }
		doubted := of(state.GetBehind()) || slices.ContainsFunc(state.GetDoubts(), of)
		if transition.Retired(state, node) && !doubted {
			return false, nil
		}
		if !state.GetWaiting() && !doubted {
			return false, fmt.Errorf("retire node %q: nothing waits for it, and it contradicts no record: %w", node,
				errdefs.ErrFailedPrecondition)
		}
		state.Missing = slices.DeleteFunc(state.Missing, func(n string) bool { return n == node })
		state.Doubts = slices.DeleteFunc(state.Doubts, of)
		if of(state.GetBehind()) {
			state.Behind = nil
			signs(state, i.self)
		}
		state.Retired = union(state.Retired, []string{node})
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	if err := i.Maintain(ctx); err != nil {
		return nil, err
	}
	return state, nil
}
