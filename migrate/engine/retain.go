package engine

import (
	"context"
	"errors"
	"fmt"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// retain drops the tags of all but the newest Keep snapshots; the owner's and the open
// operation's always stay.
func (e *Engine) retain(ctx context.Context, rec *nodev1.Record) error {
	refs := rec.GetSnapshots()
	var errs []error
	for _, ref := range refs[:max(0, len(refs)-e.opts.Keep)] {
		if ref.GetDigest() == rec.GetOwner().GetDigest() || ref.GetDigest() == rec.GetOperation().GetDigest() {
			continue
		}
		if err := e.drop(ctx, rec.GetVm(), ref); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (e *Engine) drop(ctx context.Context, vm *nodev1.VM, ref *nodev1.SnapshotRef) error {
	if err := e.Snapshots.DropTag(ctx, ref.GetRepository(), ref.GetTag()); err != nil {
		return fmt.Errorf("drop tag %s of snapshot %s in %s: %w", ref.GetTag(), ref.GetDigest(), ref.GetRepository(), err)
	}
	_, err := e.Records.Trim(ctx, &nodev1.TrimRequest{Vm: vm, Digest: ref.GetDigest()})
	return records(err)
}

// Sweep tries again to drop what an operation has left (S0-54). Call it now and then;
// VMs under an operation are left alone.
func (e *Engine) Sweep(ctx context.Context) error {
	all, err := e.Records.List(ctx, &nodev1.ListRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range all.GetRecords() {
		if rec.GetOperation() == nil {
			errs = append(errs, e.retain(ctx, rec))
		}
	}
	return errors.Join(errs...)
}

// Reconcile disowns the VMs that this node owns and nothing of which is left here:
// their tasks were deleted while the records were out of reach.
func (e *Engine) Reconcile(ctx context.Context, here func(*nodev1.VM) bool) error {
	all, err := e.Records.List(ctx, &nodev1.ListRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range all.GetRecords() {
		if rec.GetOperation() != nil || rec.GetOwner().GetNode() != e.opts.Node || here(rec.GetVm()) {
			continue
		}
		_, err := e.Records.Disown(ctx, &nodev1.DisownRequest{Vm: rec.GetVm(), Node: e.opts.Node, Generation: rec.GetGeneration(), Uid: rec.GetUid()})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		e.Events.Event(ctx, Event{Type: Disowned, VM: rec.GetVm(), Reason: "nothing of the VM is left on its node"})
	}
	return errors.Join(errs...)
}
