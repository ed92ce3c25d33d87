package engine

import (
	"context"
	"errors"
	"fmt"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// retain drops the tags of all but the newest Keep snapshots; the owner's, the open
// operation's and that of a VM which was lost always stay.
func (e *Engine) retain(ctx context.Context, rec *nodev1.Record) error {
	refs := rec.GetSnapshots()
	var errs []error
	for _, ref := range refs[:max(0, len(refs)-e.opts.Keep)] {
		if d := ref.GetDigest(); d == rec.GetOwner().GetDigest() || d == rec.GetOperation().GetDigest() || d == rec.GetLost() {
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
