package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Prune deletes, now, what neither a record nor the retention rule keeps, of one VM or of
// all, and tells each. A dry one only tells.
func (r *retention) Prune(ctx context.Context, req *nodev1.PruneRequest) (*nodev1.PruneResponse, error) {
	if err := r.scanning.Take(ctx); err != nil {
		return nil, fmt.Errorf("prune: a scan has not ended: %w", err)
	}
	defer r.scanning.Give()
	resp := &nodev1.PruneResponse{}
	all, err := r.Records.List(ctx, &nodev1.ListRequest{})
	if err != nil {
		return nil, err
	}
	deletions, err := r.Records.Owed(ctx, &nodev1.OwedRequest{Vm: req.GetVm()})
	if err != nil && !errdefs.IsNotImplemented(err) {
		return nil, err
	}
	mine := func(vm *nodev1.VM) bool { return req.GetVm() == nil || name(req.GetVm()) == name(vm) }
	for _, o := range deletions.GetOwed() {
		if mine(o.GetVm()) {
			resp.Pruned = append(resp.Pruned, r.settle(ctx, o, "its deletion was decided and could not be done",
				req.GetDryRun()))
		}
	}
	for _, rec := range all.GetRecords() {
		if mine(rec.GetVm()) && rec.GetOperation() == nil {
			resp.Pruned = append(resp.Pruned, r.pruneRecord(ctx, rec, req.GetDryRun())...)
		}
	}
	left, err := r.leftovers(ctx, req.GetVm())
	for _, l := range left {
		resp.Pruned = append(resp.Pruned, r.pruneLeftover(ctx, l, req.GetDryRun()))
	}
	files, ferr := r.collect(ctx, all.GetRecords(), mine, req.GetDryRun())
	resp.Pruned = append(resp.Pruned, files...)
	if req.GetVm() == nil {
		rest, rerr := r.abandoned(ctx, req.GetDryRun())
		resp.Pruned, ferr = append(resp.Pruned, rest...), errors.Join(ferr, rerr)
	}
	if err := errors.Join(err, ferr); err != nil {
		resp.Warning = err.Error()
	}
	return resp, nil
}

func pruned(vm *nodev1.VM, ref *nodev1.SnapshotRef, why string) *nodev1.Pruned {
	return &nodev1.Pruned{Vm: vm, Repository: ref.GetRepository(), Tag: ref.GetTag(), Digest: ref.GetDigest(),
		Bytes: ref.GetBytes(), Why: why}
}

// settle does one pending deletion.
func (r *retention) settle(ctx context.Context, o *nodev1.Owed, why string, dry bool) *nodev1.Pruned {
	p := pruned(o.GetVm(), o.GetSnapshot(), why)
	if dry {
		return p
	}
	mine, err := r.reaches(ctx, o.GetSnapshot())
	switch {
	case err != nil:
	case mine:
		err = r.deletePending(ctx, o)
	default:
		err = fmt.Errorf("it lies in no store of node %s (node %q made it, and deletes it): %w", r.opts.Node,
			o.GetSnapshot().GetNode(), errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		p.Error = err.Error()
	}
	return p
}

// pruneRecord deletes what the record gives up when it is asked. What was listed before may have changed since.
func (r *retention) pruneRecord(ctx context.Context, rec *nodev1.Record, dry bool) (all []*nodev1.Pruned) {
	var given []*nodev1.Pruned
	one := func(ref *nodev1.SnapshotRef, req *nodev1.TrimRequest, why string) {
		p := pruned(rec.GetVm(), ref, why)
		all = append(all, p)
		if dry {
			return
		}
		req.Vm, req.Uid, req.Payer = rec.GetVm(), rec.GetUid(), r.deleter(ctx, ref)
		now, err := r.Records.Trim(ctx, req)
		switch listed := func(l *nodev1.SnapshotRef) bool { return l.GetDigest() == ref.GetDigest() }; {
		case err != nil:
			p.Error = err.Error()
		case now.GetUid() != rec.GetUid() || slices.ContainsFunc(now.GetSnapshots(), listed):
			p.Error = "its record has not given it up: the VM has changed meanwhile"
		default:
			given = append(given, p)
		}
	}
	for _, ref := range r.surplus(rec) {
		one(ref, &nodev1.TrimRequest{Digest: ref.GetDigest()}, fmt.Sprintf("older than the newest %d of its VM",
			cmp.Or(int(rec.GetKeep()), r.opts.Retention.Keep)))
	}
	late := r.overdue(rec)
	if len(late) > 0 && !r.containerGone(ctx, rec) {
		late = nil
	}
	for _, ref := range late {
		one(ref, r.ofEnded(ref), fmt.Sprintf("its VM ended more than %v ago", r.opts.Retention.Ended))
	}
	if len(given) > 0 {
		r.settleGiven(ctx, rec, given)
	}
	return all
}

// settleGiven does those deletions that the records list by now. Of the others, a sweep has done them meanwhile, or
// none was decided.
func (r *retention) settleGiven(ctx context.Context, rec *nodev1.Record, given []*nodev1.Pruned) {
	resp, err := r.Records.Owed(ctx, &nodev1.OwedRequest{Vm: rec.GetVm()})
	for _, p := range given {
		i := slices.IndexFunc(resp.GetOwed(), func(o *nodev1.Owed) bool {
			return name(o.GetVm()) == name(rec.GetVm()) && o.GetUid() == rec.GetUid() &&
				o.GetSnapshot().GetDigest() == p.GetDigest()
		})
		switch {
		case err != nil:
			p.Error = records(err).Error()
		case i >= 0:
			p.Error = r.settle(ctx, resp.GetOwed()[i], p.GetWhy(), false).GetError()
		}
	}
}

func (r *retention) pruneLeftover(ctx context.Context, l leftover, dry bool) *nodev1.Pruned {
	ref := &nodev1.SnapshotRef{Repository: l.repository, Tag: l.Tag, Digest: l.Digest, Bytes: l.Bytes}
	p := pruned(l.rec.GetVm(), ref, l.why())
	if !l.due {
		p.Error = fmt.Sprintf("it is watched for %v first", r.opts.Retention.Grace)
		return p
	}
	if !dry {
		if err := r.remove(ctx, l); err != nil {
			p.Error = err.Error()
		}
	}
	return p
}

// collect has layout directories drop the files that nothing lists: nothing lists those of
// a capture that is under way either, however old the first of them are. Records that are an old copy
// know of no such capture: they free nothing.
func (r *retention) collect(ctx context.Context, all []*nodev1.Record, mine func(*nodev1.VM) bool,
	dry bool) (list []*nodev1.Pruned, err error) {
	if err := r.vouched(ctx, nil); err != nil {
		return nil, err
	}
	for _, rec := range all {
		repository := r.opts.Repository(rec)
		if !mine(rec.GetVm()) || repository == "" || rec.GetOperation() != nil {
			continue
		}
		files, bytes, failed := r.Snapshots.Collect(ctx, repository, r.opts.Retention.Grace, dry)
		err = errors.Join(err, failed)
		if files > 0 {
			list = append(list, &nodev1.Pruned{Vm: rec.GetVm(), Repository: repository, Bytes: bytes, Why: unlisted(files)})
		}
	}
	return list, err
}

// abandoned is collect for what no record stands for. The records are asked once there is a
// directory to ask for: the record of a VM comes before its first file.
func (r *retention) abandoned(ctx context.Context, dry bool) (list []*nodev1.Pruned, err error) {
	known := &knownUIDs{core: r.core, answers: map[string]bool{}}
	freed, err := r.Snapshots.Abandoned(ctx, func(uid string) bool {
		return known.has(ctx, uid)
	}, r.opts.Retention.Grace, dry)
	for _, f := range freed {
		list = append(list, &nodev1.Pruned{Repository: f.Repository, Bytes: f.Bytes, Why: unlisted(f.Files)})
	}
	return list, errors.Join(records(known.err), err)
}

// knownUIDs are the VMs that have a record. While the records do not answer, or do not count, all have.
type knownUIDs struct {
	*core
	answers map[string]bool
	err     error
}

func (k *knownUIDs) has(ctx context.Context, uid string) bool {
	if known, asked := k.answers[uid]; asked || k.err != nil {
		return known || k.err != nil
	}
	all, err := k.Records.List(ctx, &nodev1.ListRequest{Uids: []string{uid}})
	if err != nil {
		k.err = err
		return true
	}
	known := slices.ContainsFunc(all.GetRecords(), func(r *nodev1.Record) bool { return r.GetUid() == uid })
	if !known {
		if k.err = k.vouched(ctx, nil); k.err != nil {
			return true
		}
	}
	k.answers[uid] = known
	return k.answers[uid]
}

func unlisted(files int) string { return fmt.Sprintf("%d files that no manifest lists", files) }
