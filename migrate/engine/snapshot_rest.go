package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// deleteRest deletes everything that stands in a repository and is of a VM whose record was removed: its
// store was put back from a copy before that, so that the record may not have known of it. The store
// lists what is there; each manifest has to name the VM's uid. As long as a record is of that uid nothing goes.
func (r *retention) deleteRest(ctx context.Context, o *nodev1.Owed) error {
	repository := o.GetSnapshot().GetRepository()
	fail := func(err error) error {
		return fmt.Errorf("what is left of VM %s (uid %s) stays in %s: %w", name(o.GetVm()), o.GetUid(), repository, err)
	}
	if err := r.vouched(ctx, nil); err != nil {
		return fail(err)
	}
	known, err := r.Records.List(ctx, &nodev1.ListRequest{Uids: []string{o.GetUid()}})
	if err != nil {
		return records(err)
	}
	for _, rec := range known.GetRecords() {
		if rec.GetUid() == o.GetUid() {
			return fail(fmt.Errorf("the record of VM %s is of that uid: %w", name(rec.GetVm()), errdefs.ErrFailedPrecondition))
		}
	}
	tags, err := r.Snapshots.Leftovers(ctx, repository)
	if err != nil {
		return fail(err)
	}
	var errs []error
	for _, t := range tags {
		if t.UID == o.GetUid() {
			err := r.Snapshots.Drop(ctx, repository, t.Digest, t.Tag, o.GetUid())
			if !errors.Is(err, ErrForeign) { // it only says to be of that VM: its deletion is no node's duty
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fail(err)
	}
	_, err = r.Records.Clear(ctx, &nodev1.ClearRequest{Vm: o.GetVm(), Repository: repository,
		Digest: o.GetSnapshot().GetDigest()})
	return records(err)
}

// reachesRest is reaches of such a deletion: a directory is listed by the node whose it is.
func (r *retention) reachesRest(ref *nodev1.SnapshotRef) bool {
	return !record.InLayout(ref.GetRepository()) || ref.GetNode() == "" || ref.GetNode() == r.opts.Node
}
