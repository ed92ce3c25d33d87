package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Leftover is a tag of a repository, read.
type Leftover struct {
	Tag, Digest    string
	UID, Operation string // of what stands under it
	Generation     uint64
	Hold           bool // it holds packs of a capture; else it is a snapshot
	Bytes          uint64
}

// Freed tells of files of a repository that nothing lists.
type Freed struct {
	Repository string
	Files      int
	Bytes      uint64
}

// scanned is what the engine remembers of tags that no record names.
type scanned struct {
	since map[watched]time.Time // first seen
	next  time.Time             // of the next scan
}

// watched is a snapshot or a hold that the record of its VM, by UID, did not name.
type watched struct{ uid, repository, digest string }

// minScan is the least between two scans, which ask the store for every tag.
const minScan = time.Minute

// repositoryBound is of reading the tags of one repository. So a store that hardly answers does not stop the others.
const repositoryBound = 5 * time.Minute

// Scan deletes what operations have left that are over: snapshots and holds whose tags stand in a VM's repository
// and that its record does not name. In a layout directory they are the files that nothing lists. It decides by the
// record. A tag, and the clock of the node that wrote it, only say where to look. Each is watched for the grace
// time first.
//
// Tags in repositories of VMs without a record are not looked at: they may be another
// cluster's. Where there is no tag either, each node frees what its own directory has of them.
// Call it often; it begins when it is due, and takes as long as the store takes for all
// tags of all VMs.
func (r *retention) Scan(ctx context.Context) error {
	if err := r.scanning.Take(ctx); err != nil {
		return fmt.Errorf("scan: a prune has not ended: %w", err)
	}
	defer r.scanning.Give()
	if r.now().Before(r.scan.next) {
		return nil
	}
	r.scan.next = r.now().Add(max(r.opts.Retention.Grace/4, minScan))
	if !r.opts.Retention.Scans {
		_, err := r.abandoned(ctx, false)
		return err
	}
	found, err := r.leftovers(ctx, nil)
	errs := []error{err}
	for _, f := range found {
		if f.due {
			errs = append(errs, r.remove(ctx, f))
		}
	}
	all, err := r.Records.List(ctx, &nodev1.ListRequest{})
	_, ferr := r.collect(ctx, all.GetRecords(), func(*nodev1.VM) bool { return true }, false)
	_, aerr := r.abandoned(ctx, false)
	return errors.Join(append(errs, err, ferr, aerr)...)
}

// leftover is one that no record keeps.
type leftover struct {
	Leftover
	rec        *nodev1.Record
	repository string
	due        bool // watched for long enough
}

func (l leftover) why() string {
	if l.Hold {
		return "it held packs of operation " + l.Operation + ", which is over"
	}
	return "no record names it; operation " + l.Operation + " left it"
}

// leftovers looks at the repositories of a VM, or of all.
func (r *retention) leftovers(ctx context.Context, vm *nodev1.VM) (found []leftover, err error) {
	if err := r.trust(ctx); err != nil {
		return nil, err
	}
	all, err := r.Records.List(ctx, &nodev1.ListRequest{})
	if err != nil {
		return nil, err
	}
	var errs []error
	seen, passed := map[watched]time.Time{}, map[string]bool{}
	for _, rec := range all.GetRecords() {
		repositories := r.repositories(rec)
		if vm != nil && name(vm) != name(rec.GetVm()) || len(repositories) == 0 || rec.GetOperation() != nil {
			passed[rec.GetUid()] = true
			continue
		}
		for _, repository := range repositories {
			tags, err := r.tags(ctx, repository)
			if err != nil {
				passed[rec.GetUid()] = true
				errs = append(errs, fmt.Errorf("look for leftovers of VM %s: %w", name(rec.GetVm()), err))
				continue
			}
			for _, t := range tags {
				if named(rec, t) {
					continue
				}
				key := watched{rec.GetUid(), repository, t.Digest}
				first, known := r.scan.since[key]
				if !known {
					first = r.now()
				}
				seen[key] = first
				found = append(found, leftover{Leftover: t, rec: rec, repository: repository, due: known &&
					r.now().Sub(first) >= r.opts.Retention.Grace})
			}
		}
	}
	// The watch of a VM that was passed over goes on: with a checkpoint each few minutes, an
	// operation is open at many a scan.
	for key, first := range r.scan.since {
		if passed[key.uid] {
			seen[key] = first
		}
	}
	r.scan.since = seen
	return found, errors.Join(errs...)
}

func (r *retention) tags(ctx context.Context, repository string) ([]Leftover, error) {
	ctx, cancel := context.WithTimeout(ctx, repositoryBound)
	defer cancel()
	return r.Snapshots.Leftovers(ctx, repository)
}

// repositories are where the snapshots of a VM go, and those where orders have put some.
func (r *retention) repositories(rec *nodev1.Record) (all []string) {
	if own := r.opts.Repository(rec); own != "" {
		all = append(all, own)
	}
	for _, ref := range rec.GetSnapshots() {
		if ref.GetGiven() && !slices.Contains(all, ref.GetRepository()) {
			all = append(all, ref.GetRepository())
		}
	}
	return all
}

// named reports whether the record has to do with what stands under a tag. Another VM's
// is never touched, wherever it lies, nor one of a generation that the record has not
// reached: the records are those of a backup then, and it may be all there is of the VM.
func named(rec *nodev1.Record, t Leftover) bool {
	if t.UID != rec.GetUid() || t.Generation > rec.GetGeneration() || record.Unknown(rec, t.Generation) ||
		t.Digest == rec.GetOwner().GetDigest() || t.Digest == rec.GetLost() {
		return true
	}
	for _, ref := range rec.GetSnapshots() {
		if ref.GetDigest() == t.Digest {
			return true
		}
	}
	return false
}

// remove asks the record once more: an operation that was opened since may be about to
// name it.
func (r *retention) remove(ctx context.Context, l leftover) error {
	rec, err := r.Records.Get(ctx, &nodev1.GetRequest{Vm: l.rec.GetVm()})
	if err != nil {
		return records(err)
	}
	if rec.GetOperation() != nil || rec.GetUid() != l.rec.GetUid() || named(rec, l.Leftover) {
		return nil
	}
	if err := r.vouched(ctx, nil); err != nil { // of an old copy it may be all there is of the VM
		return err
	}
	if err := r.Snapshots.Drop(ctx, l.repository, l.Digest, l.Tag, l.UID); err != nil {
		return fmt.Errorf("leftover %s (tag %s) of VM %s stays in %s: %w", l.Digest, l.Tag, name(rec.GetVm()),
			l.repository, err)
	}
	delete(r.scan.since, watched{l.rec.GetUid(), l.repository, l.Digest})
	return nil
}
