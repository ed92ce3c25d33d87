package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/journal"
)

// revert gives the VM back after the destination has fenced itself: the record says that
// it is this node's again, under a new generation.
func (h *handover) revert(ctx context.Context, generation uint64) error {
	vm := h.vm
	vm.mu.Lock()
	j := vm.journal.Load()
	if vm.op.capture == nil && j.Phase == journal.Own && j.Generation == generation && generation > h.ref.GetGeneration() {
		dead := vm.state == Stopped
		vm.mu.Unlock()
		if dead {
			return h.errEnded()
		}
		return nil // done before
	}
	c, err := h.heldCapture("revert")
	if err == nil && j.Phase != journal.Prepared {
		err = fmt.Errorf("revert VM %s: it is %s, and has not voted: %w", vm.id, j.Phase, errdefs.ErrFailedPrecondition)
	}
	vm.mu.Unlock()
	if err == nil {
		err = h.reverted(ctx, generation)
	}
	if err != nil {
		return err
	}
	c.reverted.Store(generation)
	err = c.abort(Prepared)
	if vm.inState(Stopped) {
		return errors.Join(h.errEnded(), err)
	}
	return err
}

// errEnded is the answer of a source that has its VM back and cannot run it.
func (h *handover) errEnded() error {
	return fmt.Errorf("revert VM %s: it ended at its source: %w", h.vm.id, errdefs.ErrDataLoss)
}

// reverted asks the record, as a resume without its word may make a second VM. A generation that
// does not come after the commit's is none of a revert.
func (h *handover) reverted(ctx context.Context, generation uint64) error {
	vm, ref := h.vm, h.ref
	if generation <= ref.GetGeneration()+1 {
		return fmt.Errorf("revert VM %s: generation %d is not after a commit of operation %s: %w", vm.id, generation,
			ref.GetOperation(), errdefs.ErrFailedPrecondition)
	}
	if vm.host.Records == nil {
		return fmt.Errorf("revert VM %s: this node keeps no records: %w", vm.id, errdefs.ErrFailedPrecondition)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(vm.host.Config.Timeouts.Daemon))
	defer cancel()
	rec, err := vm.host.Records.Get(ctx, &nodev1.GetRequest{Vm: vm.name()})
	if err != nil {
		return unavailable(err)
	}
	if rec.GetOwner().GetNode() != vm.host.Config.Node || rec.GetGeneration() != generation {
		return fmt.Errorf("revert VM %s to generation %d: its record has owner %v at %d: %w", vm.id, generation,
			rec.GetOwner(), rec.GetGeneration(), errdefs.ErrFailedPrecondition)
	}
	return nil
}
