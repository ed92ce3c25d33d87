package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// How old a count of all records may be: where it lets a node pass, and where it would refuse one.
// What this controller has let pass since is counted besides; what another one has, is not.
const (
	countedFor = time.Minute
	refusedFor = time.Second
)

// usage counts what each node has in the store.
type usage struct {
	turn ctxLock // who counts

	mu         sync.Mutex
	at         time.Time
	took       time.Duration
	records    map[string]int // that it has made
	operations map[string]int // that it drives
}

// admit refuses a record, or an operation, of a node that has as many as it may.
func (t *usage) admit(ctx context.Context, s *Service, node string, makes, opens bool) error {
	p := s.policy
	if (!makes || p.Records == 0) && (!opens || p.Operations == 0) {
		return nil
	}
	full := func(n, most int, asked bool) bool { return asked && most > 0 && n >= most }
	records, operations, err := t.count(ctx, s, node, countedFor)
	if err == nil && (full(records, p.Records, makes) || full(operations, p.Operations, opens)) {
		records, operations, err = t.count(ctx, s, node, refusedFor)
	}
	switch {
	case err != nil:
		return err
	case full(records, p.Records, makes):
		return fmt.Errorf("node %s has %d VMs, of %d that it may. To go on, remove some, or raise "+
			"controller.records_per_node: %w", node, records, p.Records, errdefs.ErrResourceExhausted)
	case full(operations, p.Operations, opens):
		return fmt.Errorf("node %s drives %d operations, of %d that it may at once. To go on, wait for some, or raise "+
			"controller.operations_per_node: %w", node, operations, p.Operations, errdefs.ErrResourceExhausted)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if makes {
		t.records[node]++
	}
	if opens {
		t.operations[node]++
	}
	return nil
}

// counted answers what a node has, if that was counted after then, or is no older than that. A count that takes
// long is good for longer: a node that asks without end makes no work by it.
func (t *usage) counted(node string, now, then time.Time, old time.Duration) (records, operations int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ok = t.records != nil && (now.Sub(t.at) < max(old, 10*t.took) || t.at.After(then))
	return t.records[node], t.operations[node], ok
}

// count answers what a node has, by a count that is no older than that. However many ask at once,
// one counts.
func (t *usage) count(ctx context.Context, s *Service, node string, old time.Duration) (records, operations int,
	err error) {
	asked := s.now()
	if records, operations, ok := t.counted(node, asked, asked, old); ok {
		return records, operations, nil
	}
	if err := t.turn.lock(ctx); err != nil {
		return 0, 0, err
	}
	defer t.turn.unlock()
	begun := s.now()
	if records, operations, ok := t.counted(node, begun, asked, old); ok {
		return records, operations, nil
	}
	all, err := s.list(ctx, "", 0) // waits for no other list of that node
	if err != nil {
		return 0, 0, err
	}
	made, driven := map[string]int{}, map[string]int{}
	for _, rec := range all {
		made[rec.GetMadeBy()]++
		if op := rec.GetOperation(); op != nil {
			for _, driver := range drivers(op) {
				driven[driver]++
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at, t.took, t.records, t.operations = begun, s.now().Sub(begun), made, driven
	return made[node], driven[node], nil
}
