package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Reconcile ends what this node's record says of VMs that it no longer has: their tasks were deleted while the
// records were out of reach, or their shims died over a wake of their own. That local does not list a VM only says
// where to look: it must be proved in each round that nothing of it is here (nothing), for Options.Grace, under an
// unchanged record: a Create claims it before it leaves anything here; one that has ended is given up at once. And
// it looks at each VM that is here, whatever the records say of it. VMs that local could not read cost the others
// nothing: what local has read, it answers in addition to its error. Shims are asked together, so that one that
// hangs keeps no other VM waiting. Call it at the start, and now and then, never twice at once.
func (e *Engine) Reconcile(ctx context.Context, local func() ([]*nodev1.VM, error)) error {
	all, err := e.ours(ctx)
	if err != nil {
		return err
	}
	return e.rounds.reconcile(ctx, all, local)
}

func (r *rounds) reconcile(ctx context.Context, all []*nodev1.Record, local func() ([]*nodev1.VM, error)) error {
	if err := r.trust(ctx); err != nil {
		return err
	}
	vms, unread := local()
	here := map[string]bool{}
	for _, vm := range vms {
		here[name(vm)] = true
	}
	r.mu.Lock()
	r.seen = map[string]time.Time{}
	r.mu.Unlock()
	work := []func() error{func() error { return r.retryCleanups(ctx) }}
	known := map[string]*nodev1.Record{}
	for _, rec := range all {
		known[name(rec.GetVm())] = rec
		switch mine, orphan := r.concerns(rec); {
		case mine && !here[name(rec.GetVm())]:
			if unread == nil {
				work = append(work, func() error { return r.absent(ctx, rec) })
			}
		case orphan:
			work = append(work, func() error { return r.confirm(ctx, rec) })
		}
	}
	for _, vm := range vms {
		work = append(work, func() error { return r.stray(ctx, vm, known[name(vm)]) })
	}
	err := errors.Join(unread, r.together(work))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = r.seen
	return err
}

// AtOnce is how many shims a round asks together, at most.
const AtOnce = 32

// together does all work, so much of it at once, and answers all that went wrong.
func (r *rounds) together(work []func() error) error {
	errs := make([]error, len(work))
	if r.opts.AtOnce == 1 {
		for i, do := range work {
			errs[i] = do()
		}
		return errors.Join(errs...)
	}
	var group errgroup.Group
	group.SetLimit(r.opts.AtOnce)
	for i, do := range work {
		group.Go(func() error {
			errs[i] = do()
			return nil
		})
	}
	_ = group.Wait() // each has its own error
	return errors.Join(errs...)
}

// concerns reports whether rec speaks of this node, and of a wake that no engine drives.
func (r *rounds) concerns(rec *nodev1.Record) (mine, orphan bool) {
	if op := rec.GetOperation(); op != nil {
		orphan = !op.GetManaged() && op.GetKind() == nodev1.Kind_KIND_WAKE && op.GetDestination() == r.opts.Node
		return orphan, orphan
	}
	return rec.GetOwner().GetNode() == r.opts.Node, false
}

// absent gives up the VM of rec if it has not been here for Options.Grace, or is known never to come
// back under rec. A shim, or a look for what it has left, says that it is not here, and no list.
func (r *rounds) absent(ctx context.Context, rec *nodev1.Record) error {
	if !r.nothing(ctx, rec.GetVm()) {
		return nil
	}
	key := fmt.Sprintf("%s/%d", rec.GetUid(), rec.GetVersion())
	if !ended(rec) && !r.since(key) {
		return nil
	}
	return r.giveUpRecord(ctx, rec)
}

// ended reports whether a VM that was not here after rec was read has ended: it was here before rec was written,
// since a wake commits after its journal, and no Create claims a VM that is lost.
func ended(rec *nodev1.Record) bool {
	if op := rec.GetOperation(); op != nil {
		return op.GetPhase() == nodev1.Phase_PHASE_COMMITTED
	}
	return record.IsLost(rec)
}

// since reports whether what key stands for has been so for Options.Grace, in all rounds.
func (r *rounds) since(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, seen := r.gone[key]
	if !seen {
		first = r.now()
	}
	r.seen[key] = first
	return r.now().Sub(first) >= r.opts.Grace
}

// confirm settles the wake of a shim that could not report that its VM runs.
func (r *rounds) confirm(ctx context.Context, rec *nodev1.Record) error {
	op := rec.GetOperation()
	if p := op.GetPhase(); p != nodev1.Phase_PHASE_COMMITTED && p != nodev1.Phase_PHASE_CLEANING {
		return nil
	}
	q, err := r.Observer.Query(ctx, op.GetVm())
	if err != nil || q.GetRecord() != recordOwn || q.GetGeneration() <= op.GetGeneration() ||
		q.GetState() != stateRunning {
		return nil // the shim is at it
	}
	return r.finish(ctx, op, nodev1.Phase_PHASE_SUCCEEDED, "", false)
}

const missingReason = "nothing of the VM is left on its node"

// endMissing gives up a claim of this node of which it has found nothing. A shim may have stood still
// all that time between its claim and its first word: so the record says first that the claim is about
// to be given up, by which no Start runs, and the node looks once more. The second write counts only
// where the record is as it was at that look, however late it comes.
func (r *rounds) endMissing(ctx context.Context, rec *nodev1.Record) error {
	req := &nodev1.DisownRequest{Vm: rec.GetVm(), Node: r.opts.Node, Generation: rec.GetGeneration(), Uid: rec.GetUid(),
		Missing: true}
	now, err := r.Records.Disown(ctx, req)
	if err != nil {
		return err
	}
	if now.GetOwner().GetNode() == r.opts.Node { // a controller of a build before has given it up by now
		if !r.nothing(ctx, rec.GetVm()) {
			return nil
		}
		if err := r.vouched(ctx, nil); err != nil { // of an old copy: the VM may sleep in a snapshot that it does not name
			return err
		}
		req.Missing, req.Version = false, now.GetVersion()
		if _, err := r.Records.Disown(ctx, req); err != nil {
			return err
		}
	}
	r.Events.Event(ctx, Event{Type: OwnershipEnded, VM: rec.GetVm(), Reason: missingReason})
	return nil
}

// GiveUp ends the claim of this node on a VM that is to be removed, if nothing of the VM is here: a shim that died
// between its claim and its first word leaves such a claim. Who removes a VM by force does not wait for Options.Grace:
// a shim that stands still there is refused its Start, as after the grace. A VM of which something is here keeps its
// record.
func (e *Engine) GiveUp(ctx context.Context, rec *nodev1.Record) error {
	r := e.rounds
	if rec.GetOperation() != nil || rec.GetRivals() || record.IsLost(rec) || rec.GetOwner().GetNode() != r.opts.Node ||
		!r.nothing(ctx, rec.GetVm()) {
		return nil
	}
	if err := r.trust(ctx); err != nil {
		return err
	}
	return r.endMissing(ctx, rec)
}

func (r *rounds) giveUpRecord(ctx context.Context, rec *nodev1.Record) error {
	op := rec.GetOperation()
	if op == nil {
		return r.endMissing(ctx, rec)
	}
	switch op.GetPhase() {
	case nodev1.Phase_PHASE_COMMITTED:
		return r.lost(ctx, rec, nodev1.Phase_PHASE_LOST_AT_DEST, missingReason)
	case nodev1.Phase_PHASE_CLEANING:
		return r.finish(ctx, op, nodev1.Phase_PHASE_SUCCEEDED, "", false)
	}
	if abortable(op.GetPhase()) {
		err := r.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_ABORTING, Reason: missingReason})
		if err != nil && !errdefs.IsFailedPrecondition(err) {
			return err
		}
	}
	return r.finish(ctx, op, nodev1.Phase_PHASE_FAILED, missingReason, false)
}
