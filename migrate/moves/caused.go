package moves

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
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

// append writes down an event that its source has caused.
func (s *Service) append(ctx context.Context, ev *nodev1.MoveEvent) error {
	s.appending.Lock()
	defer s.appending.Unlock()
	n := 0
	for _, was := range s.Cluster.Events(ctx, 0, 0) {
		if was.GetSource() == ev.GetSource() && slices.Contains(caused, was.GetType()) {
			n++
		}
	}
	if n >= maxCaused {
		return fmt.Errorf("event %s of VM %s: node %s has caused %d of those that are remembered, which is the most: %w",
			ev.GetType(), key(ev.GetVm()), ev.GetSource(), n, errdefs.ErrResourceExhausted)
	}
	return s.Cluster.Append(ctx, ev)
}

// Refused reports whether the controller takes an event no other time either.
func Refused(err error) bool {
	return errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err) || errdefs.IsResourceExhausted(err)
}

// hear writes down what a node has done by itself, of VMs that have a record. What is refused holds up nothing that
// comes after it; what fails is all told again.
func (s *Service) hear(ctx context.Context, node string, all []*nodev1.MoveEvent) (refused error) {
	if len(all) > MaxTold {
		return fmt.Errorf("events of node %s: %d at once, at most %d: %w", node, len(all), MaxTold,
			errdefs.ErrInvalidArgument)
	}
	for _, said := range all {
		switch err := s.hearOne(ctx, node, said); {
		case Refused(err):
			refused = cmp.Or(refused, err)
		case err != nil:
			return err
		}
	}
	return refused
}

func (s *Service) hearOne(ctx context.Context, node string, said *nodev1.MoveEvent) error {
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
	return s.append(ctx, &nodev1.MoveEvent{Type: said.GetType(), Vm: said.GetVm(), Reason: said.GetReason(), Source: node})
}
