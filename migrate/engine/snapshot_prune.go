package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Prune deletes, now, what neither a record nor the retention rule keeps, of one VM or of
// all, and tells each. A dry one only tells.
func (e *Engine) Prune(ctx context.Context, req *nodev1.PruneRequest) (*nodev1.PruneResponse, error) {
	e.scanning.Lock()
	defer e.scanning.Unlock()
	resp := &nodev1.PruneResponse{}
	all, err := e.Records.List(ctx, &nodev1.ListRequest{})
	if err != nil {
		return nil, err
	}
	owed, err := e.Records.Owed(ctx, &nodev1.OwedRequest{Vm: req.GetVm()})
	if err != nil && !errdefs.IsNotImplemented(err) {
		return nil, err
	}
	mine := func(vm *nodev1.VM) bool { return req.GetVm() == nil || name(req.GetVm()) == name(vm) }
	for _, o := range owed.GetOwed() {
		if mine(o.GetVm()) {
			resp.Pruned = append(resp.Pruned, e.settle(ctx, o, "its deletion was decided and could not be done", req.GetDryRun()))
		}
	}
	for _, rec := range all.GetRecords() {
		if mine(rec.GetVm()) && rec.GetOperation() == nil {
			resp.Pruned = append(resp.Pruned, e.pruneRecord(ctx, rec, req.GetDryRun())...)
		}
	}
	left, err := e.leftovers(ctx, req.GetVm())
	for _, l := range left {
		resp.Pruned = append(resp.Pruned, e.pruneLeftover(ctx, l, req.GetDryRun()))
	}
	files, ferr := e.collect(ctx, all.GetRecords(), mine, req.GetDryRun())
	resp.Pruned = append(resp.Pruned, files...)
	if req.GetVm() == nil {
		rest, rerr := e.abandoned(ctx, req.GetDryRun())
		resp.Pruned, ferr = append(resp.Pruned, rest...), errors.Join(ferr, rerr)
	}
	if err := errors.Join(err, ferr); err != nil {
		resp.Warning = err.Error()
	}
	return resp, nil
}

func pruned(vm *nodev1.VM, ref *nodev1.SnapshotRef, why string) *nodev1.Pruned {
	return &nodev1.Pruned{Vm: vm, Repository: ref.GetRepository(), Tag: ref.GetTag(), Digest: ref.GetDigest(), Bytes: ref.GetBytes(), Why: why}
}

// settle pays one debt.
func (e *Engine) settle(ctx context.Context, o *nodev1.Owed, why string, dry bool) *nodev1.Pruned {
	p := pruned(o.GetVm(), o.GetSnapshot(), why)
	if dry {
		return p
	}
	mine, err := e.reaches(ctx, o.GetSnapshot())
	switch {
	case err != nil:
	case mine:
		err = e.pay(ctx, o)
	default:
		err = fmt.Errorf("it lies in no store of node %s (node %q made it, and deletes it): %w", e.opts.Node, o.GetSnapshot().GetNode(), errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		p.Error = err.Error()
	}
	return p
}

func (e *Engine) pruneRecord(ctx context.Context, rec *nodev1.Record, dry bool) (all []*nodev1.Pruned) {
	one := func(ref *nodev1.SnapshotRef, req *nodev1.TrimRequest, why string) {
		if !dry {
			req.Vm, req.Payer = rec.GetVm(), e.payer(ctx, ref)
			if _, err := e.Records.Trim(ctx, req); err != nil {
				p := pruned(rec.GetVm(), ref, why)
				p.Error = err.Error()
				all = append(all, p)
				return
			}
		}
		all = append(all, e.settle(ctx, &nodev1.Owed{Vm: rec.GetVm(), Uid: rec.GetUid(), Snapshot: ref}, why, dry))
	}
	for _, ref := range e.surplus(rec) {
		one(ref, &nodev1.TrimRequest{Digest: ref.GetDigest()}, fmt.Sprintf("older than the newest %d of its VM", e.opts.Retention.Keep))
	}
	late := e.overdue(rec)
	if len(late) > 0 && !e.containerGone(ctx, rec) {
		late = nil
	}
	for _, ref := range late {
		one(ref, e.ofEnded(ref), fmt.Sprintf("its VM ended more than %v ago", e.opts.Retention.Ended))
	}
	return all
}

func (e *Engine) pruneLeftover(ctx context.Context, l leftover, dry bool) *nodev1.Pruned {
	ref := &nodev1.SnapshotRef{Repository: l.repository, Tag: l.Tag, Digest: l.Digest, Bytes: l.Bytes}
	p := pruned(l.rec.GetVm(), ref, l.why())
	if !l.due {
		p.Error = fmt.Sprintf("it is watched for %v first", e.opts.Retention.Grace)
		return p
	}
	if !dry {
		if err := e.remove(ctx, l); err != nil {
			p.Error = err.Error()
		}
	}
	return p
}

// collect has layout directories drop the files that nothing lists: nothing lists those of
// a capture that is under way either, however old the first of them are. Records that are an old copy
// know of no such capture: they free nothing.
func (e *Engine) collect(ctx context.Context, all []*nodev1.Record, mine func(*nodev1.VM) bool, dry bool) (list []*nodev1.Pruned, err error) {
	if err := e.vouched(ctx, nil); err != nil {
		return nil, err
	}
	for _, rec := range all {
		repository := e.opts.Repository(rec)
		if !mine(rec.GetVm()) || repository == "" || rec.GetOperation() != nil {
			continue
		}
		files, bytes, failed := e.Snapshots.Collect(ctx, repository, e.opts.Retention.Grace, dry)
		err = errors.Join(err, failed)
		if files > 0 {
			list = append(list, &nodev1.Pruned{Vm: rec.GetVm(), Repository: repository, Bytes: bytes, Why: unlisted(files)})
		}
	}
	return list, err
}

// abandoned is collect for what no record stands for. The records are asked once there is a
// directory to ask for: the record of a VM comes before its first file.
func (e *Engine) abandoned(ctx context.Context, dry bool) (list []*nodev1.Pruned, err error) {
	known := &knownUIDs{engine: e, answers: map[string]bool{}}
	freed, err := e.Snapshots.Abandoned(ctx, func(uid string) bool { return known.has(ctx, uid) }, e.opts.Retention.Grace, dry)
	for _, f := range freed {
		list = append(list, &nodev1.Pruned{Repository: f.Repository, Bytes: f.Bytes, Why: unlisted(f.Files)})
	}
	return list, errors.Join(records(known.err), err)
}

// knownUIDs are the VMs that have a record. While the records do not answer, or do not count, all have.
type knownUIDs struct {
	engine  *Engine
	answers map[string]bool
	err     error
}

func (k *knownUIDs) has(ctx context.Context, uid string) bool {
	if known, asked := k.answers[uid]; asked || k.err != nil {
		return known || k.err != nil
	}
	all, err := k.engine.Records.List(ctx, &nodev1.ListRequest{Uids: []string{uid}})
	if err != nil {
		k.err = err
		return true
	}
	known := slices.ContainsFunc(all.GetRecords(), func(r *nodev1.Record) bool { return r.GetUid() == uid })
	if !known {
		if k.err = k.engine.vouched(ctx, nil); k.err != nil {
			return true
		}
	}
	k.answers[uid] = known
	return k.answers[uid]
}

func unlisted(files int) string { return fmt.Sprintf("%d files that no manifest lists", files) }
