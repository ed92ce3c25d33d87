package moves

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/internal/turn"
	"godwit.dev/godwit/migrate/cluster"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	// MaxTold bounds what one announcement tells.
	MaxTold = 64

	// maxReason bounds in bytes what a node says of why.
	maxReason = 4096

	// maxCaused is how many of the events that are remembered one node may have caused by its word
	// alone: whatever it says, it pushes out no more of the others'.
	maxCaused = cluster.Remembered / 8
)

// caused are the types of events that cost the node which causes them a call, and change no record.
var caused = []string{moves.Outlived, moves.NoCapacity, moves.Foreign}

// turns are of the nodes that cause events: one call of each comes to the store, and the others of that node wait for
// it. So no node has more than one place in the row.
type turns struct {
	mu sync.Mutex
	of map[string]turn.Turn
}

func (t *turns) at(node string) turn.Turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]turn.Turn{}
	}
	if t.of[node] == nil {
		t.of[node] = turn.New()
	}
	return t.of[node]
}

// append writes down an event that its source has caused.
func (s *Service) append(ctx context.Context, ev *nodev1.MoveEvent) error {
	node := s.causing.at(ev.GetSource())
	if err := node.Take(ctx); err != nil {
		return fmt.Errorf("event %s of VM %s: wait for others of node %s: %w", ev.GetType(), key(ev.GetVm()),
			ev.GetSource(), err)
	}
	defer node.Give()
	n := 0
	return s.appendNext(ctx, ev, &n)
}

// appendNext is append for the holder of its source's turn. It counts from n on, which may be more than there are: of
// an event that is told again none is added. At the bound it counts anew.
func (s *Service) appendNext(ctx context.Context, ev *nodev1.MoveEvent, n *int) error {
	if *n == 0 || *n >= maxCaused {
		*n = s.caused(ctx, ev.GetSource())
	}
	if *n >= maxCaused {
		return fmt.Errorf("event %s of VM %s: node %s has caused %d of those that are remembered, which is the most: %w",
			ev.GetType(), key(ev.GetVm()), ev.GetSource(), *n, errdefs.ErrResourceExhausted)
	}
	*n++
	return s.Cluster.Append(ctx, ev)
}

// caused counts the events that are remembered and that a node has caused.
func (s *Service) caused(ctx context.Context, node string) (n int) {
	for _, was := range s.Cluster.Events(ctx, 0, 0) {
		if was.GetSource() == node && slices.Contains(caused, was.GetType()) {
			n++
		}
	}
	return n
}

// Refused reports whether the controller takes an event no other time either.
func Refused(err error) bool {
	return errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err) || errdefs.IsResourceExhausted(err)
}

// hear writes down what a node has done by itself, of VMs that have a record. What is refused holds up nothing that
// comes after it; what fails is all told again. It takes no longer than tellWait: a heartbeat is to be answered.
func (s *Service) hear(ctx context.Context, node string, all []*nodev1.MoveEvent) (refused error) {
	if len(all) > MaxTold {
		return fmt.Errorf("events of node %s: %d at once, at most %d: %w", node, len(all), MaxTold,
			errdefs.ErrInvalidArgument)
	}
	if len(all) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tellWait)
	defer cancel()
	own, n := s.causing.at(node), 0
	if err := own.Take(ctx); err != nil {
		return fmt.Errorf("events of node %s: wait for others of it: %w", node, err)
	}
	defer own.Give()
	for _, said := range all {
		switch err := s.hearOne(ctx, node, said, &n); {
		case Refused(err):
			refused = cmp.Or(refused, err)
		case err != nil:
			return err
		}
	}
	return refused
}

func (s *Service) hearOne(ctx context.Context, node string, said *nodev1.MoveEvent, n *int) error {
	if kind := said.GetType(); kind != moves.Outlived && kind != moves.Foreign {
		return fmt.Errorf("event %q of node %s: only the controller tells of that: %w", kind, node,
			errdefs.ErrInvalidArgument)
	}
	if n := len(said.GetReason()); n > maxReason {
		return fmt.Errorf("event %s of node %s: its reason has %d bytes, at most %d: %w", said.GetType(), node, n, maxReason,
			errdefs.ErrInvalidArgument)
	}
	_, err := s.Records.Get(ctx, &nodev1.GetRequest{Vm: said.GetVm()})
	if err != nil && (said.GetType() != moves.Foreign || !errdefs.IsNotFound(err)) { // pending deletions outlast their VM
		return fmt.Errorf("event %s of node %s: %w", said.GetType(), node, err)
	}
	return s.appendNext(ctx, &nodev1.MoveEvent{Type: said.GetType(), Vm: said.GetVm(), Reason: said.GetReason(),
		Source: node}, n)
}
