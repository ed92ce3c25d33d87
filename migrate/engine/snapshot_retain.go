package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/turn"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Retention is the rule for snapshots that nothing needs any more. Nodes of a cluster
// should have the same one: the shortest counts.
type Retention struct {
	Keep  int           // newest of a VM that stay; at least 1
	For   time.Duration // younger ones stay too
	Ended time.Duration // that what a wake has used up outlasts its VM; 0: it stays

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

// retention decides which snapshots and files go, and does the pending deletions.
type retention struct {
	*core
	scanning turn.Turn // the daemon's own rounds and orders to prune
	scan     scanned
	swept    time.Time            // when Sweep looked at all records and pending deletions
	asked    map[string]time.Time // when Sweep asked for the container of an ended VM, by UID

	mu          sync.Mutex
	noDeletions bool // the last round was answered that this node has no deletion to do; of Sweep
}

// noteDeletions takes the answer of a round: whether this node has a deletion to do, or may have.
func (r *retention) noteDeletions(some bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noDeletions = !some
}

func newRetention(c *core) *retention {
	return &retention{core: c, scanning: turn.New(), scan: scanned{since: map[watched]time.Time{}},
		asked: map[string]time.Time{}}
}

// surplus lists the snapshots of a VM that neither its record nor the rule keeps.
func (r *retention) surplus(rec *nodev1.Record) (refs []*nodev1.SnapshotRef) {
	all, scheduled := rec.GetSnapshots(), scheduled(rec)
	for _, ref := range all[:max(0, len(all)-cmp.Or(int(rec.GetKeep()), r.opts.Retention.Keep))] {
		if scheduled[ref.GetDigest()] || ref.GetPinned() || ref.GetManual() || ref.GetGuarded() {
			continue
		}
		if !r.young(ref) && transition.InUse(rec, ref.GetDigest()) == "" {
			refs = append(refs, ref)
		}
	}
	return refs
}

// young reports whether a snapshot stays for its age.
func (r *retention) young(ref *nodev1.SnapshotRef) bool {
	return r.opts.Retention.For > 0 && r.now().Sub(time.Unix(0, ref.GetCreatedUnixNano())) < r.opts.Retention.For
}

// scheduled are the checkpoints that the VM's schedule keeps: the newest that no person has made.
func scheduled(rec *nodev1.Record) map[string]bool {
	keep, left := map[string]bool{}, int(rec.GetSchedule().GetKeep())
	for i := len(rec.GetSnapshots()) - 1; i >= 0 && left > 0; i-- {
		if ref := rec.GetSnapshots()[i]; ref.GetCheckpoint() && !ref.GetManual() {
			keep[ref.GetDigest()] = true
			left--
		}
	}
	return keep
}

// trim decides to delete what is surplus. The record decides, once more and in one write:
// what came into use meanwhile stays.
func (r *retention) trim(ctx context.Context, rec *nodev1.Record) error {
	var errs []error
	for _, ref := range r.surplus(rec) {
		_, err := r.Records.Trim(ctx, &nodev1.TrimRequest{Vm: rec.GetVm(), Uid: rec.GetUid(),
			Digest: ref.GetDigest(), Payer: r.deleter(ctx, ref)})
		if err != nil && !errdefs.IsFailedPrecondition(err) {
			errs = append(errs, records(err))
		}
	}
	return errors.Join(errs...)
}

// deleter is this node where it can delete a snapshot, for it is at it; else the one that made it.
func (r *retention) deleter(ctx context.Context, ref *nodev1.SnapshotRef) string {
	if mine, err := r.reaches(ctx, ref); err != nil || !mine {
		return ""
	}
	return r.opts.Node
}

// Clean does the deletions that are pending for this node, of a VM, or of all if vm is nil. What cannot be
// deleted stays pending; the error says why.
func (r *retention) Clean(ctx context.Context, vm *nodev1.VM) error {
	return r.clean(ctx, &nodev1.OwedRequest{Vm: vm, Payer: r.opts.Node}, func(o *nodev1.Owed) bool {
		return record.Deleter(o) == r.opts.Node
	})
}

// clean does those pending deletions that answer a request and are for this node to do. A controller of a
// build before answers all there are.
func (r *retention) clean(ctx context.Context, req *nodev1.OwedRequest, does func(*nodev1.Owed) bool) error {
	resp, err := r.Records.Owed(ctx, req)
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
		if vm := req.GetVm(); vm != nil && name(vm) != name(o.GetVm()) || away[repository] || !does(o) {
			continue
		}
		mine, err := r.reaches(ctx, o.GetSnapshot())
		if mine && err == nil {
			err = r.deletePending(ctx, o)
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

// How long a deletion waits for its deleter before the controller does it: for one that is not heard, or
// whose store has refused it for as long.
const (
	absentDeleter = 10 * time.Minute
	idleDeleter   = time.Hour
)

// deletesInstead reports whether the controller does a deletion in place of the node that should. Of several
// controllers one does.
func (r *retention) deletesInstead(o *nodev1.Owed) bool {
	deleter, age := record.Deleter(o), r.now().Sub(time.Unix(0, o.GetSinceUnixNano()))
	if deleter == r.opts.Node || r.Peers != nil && !r.Peers.Drives("") {
		return deleter == r.opts.Node
	}
	if deleter == "" || age >= idleDeleter {
		return true
	}
	if r.Peers == nil || age < absentDeleter {
		return false
	}
	n, err := r.Peers.Node(deleter)
	return errdefs.IsNotFound(err) || err == nil && !n.GetUp() &&
		r.now().Sub(time.Unix(0, n.GetSeenUnixNano())) >= absentDeleter
}

// cleanPromptly is Clean for who has something better to do: a store that takes its time
// is left to the next sweep.
func (r *retention) cleanPromptly(ctx context.Context, vm *nodev1.VM) error {
	ctx, cancel := context.WithTimeout(ctx, r.prompt)
	defer cancel()
	return r.Clean(ctx, vm)
}

// ErrForeign says that a snapshot is not of the VM for which it was to be deleted.
var ErrForeign = errors.New("it is not of that VM")

func (r *retention) deletePending(ctx context.Context, o *nodev1.Owed) error {
	ref := o.GetSnapshot()
	if record.IsRest(ref.GetDigest()) {
		return r.deleteRest(ctx, o)
	}
	err := r.Snapshots.Drop(ctx, ref.GetRepository(), ref.GetDigest(), ref.GetTag(), o.GetUid())
	if errors.Is(err, ErrForeign) { // it stays, and its deletion is not pending any more
		r.Events.Event(ctx, Event{Type: Foreign, VM: o.GetVm(), Operation: ref.GetOperation(),
			Reason: fmt.Sprintf("%v; it stays in %s, node %q had named it", err, ref.GetRepository(), ref.GetNode())})
		err = nil
	}
	if err != nil {
		return fmt.Errorf("snapshot %s of VM %s stays in %s: %w", ref.GetDigest(), name(o.GetVm()), ref.GetRepository(), err)
	}
	_, err = r.Records.Clear(ctx, &nodev1.ClearRequest{Vm: o.GetVm(), Repository: ref.GetRepository(),
		Digest: ref.GetDigest()})
	return records(err)
}

// reaches reports whether a snapshot is in this node's own store, or where its record or its order has put it. What
// lies elsewhere, such as in another node's directory, is its nodes' to delete.
func (r *retention) reaches(ctx context.Context, ref *nodev1.SnapshotRef) (bool, error) {
	own := r.opts.Repository(&nodev1.Record{Uid: "x"})
	given := ref.GetGiven() && !record.InLayout(ref.GetRepository()) // the controller has judged it
	if !given && (own == "" || !strings.HasPrefix(ref.GetRepository(), strings.TrimSuffix(own, "x"))) {
		return false, nil
	}
	if record.IsRest(ref.GetDigest()) {
		return r.reachesRest(ref), nil
	}
	mine, err := r.Snapshots.Reaches(ctx, ref)
	if err != nil {
		return false, fmt.Errorf("snapshot %s in %s: %w", ref.GetDigest(), ref.GetRepository(), err)
	}
	return mine, nil
}

// sweepAll is how often the controller looks at the records and pending deletions of all.
const sweepAll = time.Minute

// Sweep does what is pending or due: it carries out the deletions that were decided for this node. At the
// controller it also applies, now and then, the retention rule for VMs without an operation. There it carries out
// the pending deletions whose deleters are gone, too. Call it often.
func (r *retention) Sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Step)
	defer cancel()
	r.mu.Lock()
	done := r.noDeletions
	r.noDeletions = false // the word of one round is for one sweep
	r.mu.Unlock()
	if !r.opts.Retention.Scans || r.now().Sub(r.swept) < sweepAll {
		if done {
			return nil
		}
		return r.Clean(ctx, nil)
	}
	all, err := r.Records.List(ctx, &nodev1.ListRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range all.GetRecords() {
		if rec.GetOperation() == nil {
			errs = append(errs, r.trim(ctx, rec))
		}
	}
	errs = append(errs, r.trimEnded(ctx, all.GetRecords()))
	if err = errors.Join(errs...); err == nil {
		r.swept = r.now()
	}
	return errors.Join(err, r.clean(ctx, &nodev1.OwedRequest{}, r.deletesInstead))
}

func name(vm *nodev1.VM) string { return vm.GetNamespace() + "/" + vm.GetId() }
