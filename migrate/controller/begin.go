package controller

import (
	"context"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Begin has a snapshot own the VM that it is held for. The store of the controller has that mark: no call of a node
// begins a VM.
func (s *Service) Begin(ctx context.Context, vm *nodev1.VM, held *nodev1.Owed) (*nodev1.Record, error) {
	return s.update(ctx, call{vm: vm, nodes: controllerOnly, do: func(st transition.State) (transition.Change, error) {
		return transition.Begin(st, held)
	}})
}
