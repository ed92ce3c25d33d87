package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/turn"
	"godwit.dev/godwit/migrate/store"
)

// How old a count of all records may be: where it lets a node pass, and where it would refuse one.
// What this controller has let pass since is counted besides; what another one has, is not.
const (
	countedFor = time.Minute
	refusedFor = time.Second
)

// usage counts what each node has in the store.
type usage struct {
	turn turn.Turn // who counts

	mu   sync.Mutex
	at   time.Time
	took time.Duration
	of   map[string]counts // by node
}

// counts are what one node has.
type counts struct {
	records    int // that it has made
	operations int // that it drives
	deletions  int // that it has decided, and that are pending
}

// adds is what a change of a node would add.
type adds struct{ record, operation, checkpoint bool }

// admit refuses a record, or an operation, of a node that has as many as it may.
func (t *usage) admit(ctx context.Context, s *Service, node string, adds adds) error {
	p := s.policy
	adds.record = adds.record && p.Records > 0
	adds.operation = adds.operation && p.Operations > 0
	adds.checkpoint = adds.checkpoint && p.Deletions > 0
	if !adds.record && !adds.operation && !adds.checkpoint {
		return nil
	}
	full := func(has counts) error {
		switch {
		case adds.record && has.records >= p.Records:
			return fmt.Errorf("node %s has %d VMs, of %d that it may. To go on, remove some, or raise "+
				"controller.records_per_node: %w", node, has.records, p.Records, errdefs.ErrResourceExhausted)
		case adds.operation && has.operations >= p.Operations:
			return fmt.Errorf("node %s drives %d operations, of %d that it may at once. To go on, wait for some, or raise "+
				"controller.operations_per_node: %w", node, has.operations, p.Operations, errdefs.ErrResourceExhausted)
		case adds.checkpoint && has.deletions >= p.Deletions:
			return fmt.Errorf("%d deletions of snapshots that node %s has decided are pending, of %d that may: it takes no "+
				"checkpoint. To go on, give the registry the right to delete: godwit doctor: %w", has.deletions, node, p.Deletions,
				errdefs.ErrResourceExhausted)
		}
		return nil
	}
	has, err := t.count(ctx, s, node, countedFor)
	if err == nil && full(has) != nil {
		_, err = t.count(ctx, s, node, refusedFor)
	}
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	has = t.of[node] // others have been let pass meanwhile
	if err := full(has); err != nil {
		return err
	}
	if adds.record {
		has.records++
	}
	if adds.operation {
		has.operations++
	}
	t.of[node] = has
	return nil
}

// counted answers what a node has, if that was counted after then, or is no older than that. A count that takes
// long is good for longer: a node that asks without end makes no work by it.
func (t *usage) counted(node string, now, then time.Time, old time.Duration) (has counts, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ok = t.of != nil && (now.Sub(t.at) < max(old, 10*t.took) || t.at.After(then))
	return t.of[node], ok
}

// count answers what a node has, by a count that is no older than that. However many ask at once,
// one counts.
func (t *usage) count(ctx context.Context, s *Service, node string, old time.Duration) (counts, error) {
	asked := s.now()
	if has, ok := t.counted(node, asked, asked, old); ok {
		return has, nil
	}
	if err := t.turn.Take(ctx); err != nil {
		return counts{}, fmt.Errorf("wait for a count of the records: %w", err)
	}
	defer t.turn.Give()
	begun := s.now()
	if has, ok := t.counted(node, begun, asked, old); ok {
		return has, nil
	}
	of, err := s.countAll(ctx)
	if err != nil {
		return counts{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at, t.took, t.of = begun, s.now().Sub(begun), of
	return of[node], nil
}

func (s *Service) countAll(ctx context.Context) (map[string]counts, error) {
	all, err := s.list(ctx, "", 0) // waits for no other list of that node
	if err != nil && !errors.As(err, new(*store.UnreadError)) {
		return nil, err
	}
	of := map[string]counts{}
	add := func(node string, change func(*counts)) {
		has := of[node]
		change(&has)
		of[node] = has
	}
	for _, rec := range all {
		add(rec.GetMadeBy(), func(c *counts) { c.records++ })
		if op := rec.GetOperation(); op != nil {
			for _, driver := range drivers(op) {
				add(driver, func(c *counts) { c.operations++ })
			}
		}
	}
	if s.policy.Deletions == 0 {
		return of, nil
	}
	pending, err := s.store.PendingDeletions(ctx, store.WhichDeletions{})
	if err != nil && !errors.As(err, new(*store.UnreadError)) {
		return nil, fmt.Errorf("count pending deletions: %w", err)
	}
	for _, o := range pending {
		add(o.GetBy(), func(c *counts) { c.deletions++ })
	}
	return of, nil
}
