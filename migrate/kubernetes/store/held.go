package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Held finds the snapshot of an operation among what is left of removed records, nil: it is not held there.
func Held(owed []*nodev1.Owed, operation string) *nodev1.Owed {
	i := slices.IndexFunc(owed, func(o *nodev1.Owed) bool {
		return o.GetHold() != nil && operation != "" && o.GetSnapshot().GetOperation() == operation
	})
	if i < 0 {
		return nil
	}
	return owed[i]
}

// ChangeHeld changes a snapshot that stays though the record of its VM was removed. It answers what became of it, nil:
// nothing is remembered of it. The change is made from what do was given, or it is ErrConflict.
func (s *Store) ChangeHeld(ctx context.Context, vm *nodev1.VM, operation string,
	do func(*nodev1.Owed) (*nodev1.Owed, error)) (*nodev1.Owed, error) {
	next, err := s.changeHeld(ctx, vm, operation, do)
	if err != nil {
		return nil, fmt.Errorf("change held snapshot %s of VM %s/%s: %w", operation, vm.GetNamespace(), vm.GetId(), err)
	}
	return next, nil
}

func (s *Store) changeHeld(ctx context.Context, vm *nodev1.VM, operation string,
	do func(*nodev1.Owed) (*nodev1.Owed, error)) (*nodev1.Owed, error) {
	o, c, err := s.content(ctx, vm)
	if err != nil {
		return nil, err
	}
	state, err := s.State(ctx) // after the object was read: see SetState
	if err == nil {
		err = transition.Closed(state)
	}
	if err != nil {
		return nil, err
	}
	held := Held(c.owed, operation)
	if held == nil {
		return nil, fmt.Errorf("nothing is held: %w", errdefs.ErrNotFound)
	}
	next, err := do(proto.CloneOf(held))
	if err != nil || proto.Equal(next, held) {
		return next, err
	}
	c.owed = transition.AfterHeld(c.owed, held, next)
	if err := c.write(o); err != nil {
		return nil, err
	}
	o.Under = int64(state.GetVersion())
	made, err := s.records.put(ctx, o)
	if err == nil && c.isEmpty() {
		s.discard(ctx, made)
	}
	return next, err
}
