package controller

import (
	"cmp"
	"context"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// allows answers what a change that follows would be answered: who ends a VM for it asks before.
func (s *Service) allows(ctx context.Context, req *nodev1.GetRequest, state transition.State) error {
	if !req.GetChanges() && !req.GetRemoves() {
		return nil
	}
	err := cmp.Or(transition.Closed(state.Store), transition.Doubted(state.Store, req.GetVm(), state.Record))
	if err != nil || !req.GetRemoves() {
		return err
	}
	return cmp.Or(authorize(ctx, holders(state)), s.judge(ctx, state.Record, transition.Change{}))
}
