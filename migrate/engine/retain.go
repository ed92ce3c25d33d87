package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Retention is the rule for snapshots that nothing needs any more. Nodes of a cluster
// should have the same one: the shortest counts.
type Retention struct {
	Keep int           // newest of a VM that stay; at least 1
	For  time.Duration // younger ones stay too

	Grace time.Duration // that a tag which no record names is watched before it is deleted
	// Scans is whether this node looks for such tags, and applies the rule to VMs that no
	// operation touches: the one that holds the records does.
	Scans bool
}

// Defaults of Retention.
const (
	DefaultKeep      = 1
	DefaultLeftovers = time.Hour
)

// surplus lists the snapshots of a VM that neither its record nor the rule keeps.
func (e *Engine) surplus(rec *nodev1.Record) (refs []*nodev1.SnapshotRef) {
	all, scheduled := rec.GetSnapshots(), scheduled(rec)
	for _, ref := range all[:max(0, len(all)-e.opts.Retention.Keep)] {
		if scheduled[ref.GetDigest()] {
			continue
		}
		young := e.opts.Retention.For > 0 && e.now().Sub(time.Unix(0, ref.GetCreatedUnixNano())) < e.opts.Retention.For
		if !young && transition.InUse(rec, ref.GetDigest()) == "" {
			refs = append(refs, ref)
		}
	}
	return refs
}

// scheduled are the checkpoints that the VM's schedule keeps: its newest ones.
func scheduled(rec *nodev1.Record) map[string]bool {
	keep, left := map[string]bool{}, int(rec.GetSchedule().GetKeep())
	for i := len(rec.GetSnapshots()) - 1; i >= 0 && left > 0; i-- {
		if ref := rec.GetSnapshots()[i]; ref.GetCheckpoint() {
			keep[ref.GetDigest()] = true
			left--
		}
	}
	return keep
}

// trim decides to delete what is surplus. The record decides, once more and in one write:
// what came into use meanwhile stays.
func (e *Engine) trim(ctx context.Context, rec *nodev1.Record) error {
	var errs []error
	for _, ref := range e.surplus(rec) {
		_, err := e.Records.Trim(ctx, &nodev1.TrimRequest{Vm: rec.GetVm(), Digest: ref.GetDigest()})
		if err != nil && !errdefs.IsFailedPrecondition(err) {
			errs = append(errs, records(err))
		}
	}
	return errors.Join(errs...)
}

// Clean deletes what is owed of a VM, or of all if vm is nil, in the store of this node.
// What cannot be deleted stays owed; the error says why.
func (e *Engine) Clean(ctx context.Context, vm *nodev1.VM) error {
	resp, err := e.Records.Owed(ctx, &nodev1.OwedRequest{})
	if errdefs.IsNotImplemented(err) { // a controller of a build before: its records keep the list
		return nil
	}
	if err != nil {
		return records(err)
	}
	var errs []error
	away := map[string]bool{} // repositories that would say so of each, after all their retries
	for _, o := range resp.GetOwed() {
		repository := o.GetSnapshot().GetRepository()
		if vm != nil && name(vm) != name(o.GetVm()) || away[repository] {
			continue
		}
		mine, err := e.reaches(ctx, o.GetSnapshot())
		if mine && err == nil {
			err = e.pay(ctx, o)
		}
		if err != nil {
			errs = append(errs, err)
			away[repository] = errdefs.IsUnavailable(err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// cleanPromptly is Clean for who has something better to do: a store that takes its time
// is left to the next sweep.
func (e *Engine) cleanPromptly(ctx context.Context, vm *nodev1.VM) error {
	ctx, cancel := context.WithTimeout(ctx, e.prompt)
	defer cancel()
	return e.Clean(ctx, vm)
}

func (e *Engine) pay(ctx context.Context, o *nodev1.Owed) error {
	ref := o.GetSnapshot()
	if err := e.Snapshots.Drop(ctx, ref.GetRepository(), ref.GetDigest(), ref.GetTag()); err != nil {
		return fmt.Errorf("snapshot %s of VM %s stays in %s: %w", ref.GetDigest(), name(o.GetVm()), ref.GetRepository(), err)
	}
	_, err := e.Records.Clear(ctx, &nodev1.ClearRequest{Vm: o.GetVm(), Repository: ref.GetRepository(), Digest: ref.GetDigest()})
	return records(err)
}

// reaches reports whether a snapshot is in this node's own store: what lies elsewhere, such as
// in another node's directory, is its nodes' to delete.
func (e *Engine) reaches(ctx context.Context, ref *nodev1.SnapshotRef) (bool, error) {
	own := e.opts.Repository(&nodev1.Record{Uid: "x"})
	if own == "" || !strings.HasPrefix(ref.GetRepository(), strings.TrimSuffix(own, "x")) {
		return false, nil
	}
	mine, err := e.Snapshots.Reaches(ctx, ref)
	if err != nil {
		return false, fmt.Errorf("snapshot %s in %s: %w", ref.GetDigest(), ref.GetRepository(), err)
	}
	return mine, nil
}

// Sweep does again what was owed or is due (S0-54): the retention rule for VMs without an
// operation, then all deletions that were decided and not done. Call it now and then.
func (e *Engine) Sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.opts.Step)
	defer cancel()
	var errs []error
	if e.opts.Retention.Scans {
		all, err := e.Records.List(ctx, &nodev1.ListRequest{})
		if err != nil {
			return err
		}
		for _, rec := range all.GetRecords() {
			if rec.GetOperation() == nil {
				errs = append(errs, e.trim(ctx, rec))
			}
		}
	}
	return errors.Join(append(errs, e.Clean(ctx, nil))...)
}

func name(vm *nodev1.VM) string { return vm.GetNamespace() + "/" + vm.GetId() }
