package engine

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM that woke and ended has left the snapshot that it woke from: the retention rule keeps the newest one, which
// is of no use once the container is deleted. Retention.Ended after the end was noted it goes. A container that was
// stopped, or whose node does not say, keeps it.

// These are bounds for the questions about containers that keep a snapshot: other work waits for them.
// containerAgain is the least time between two questions about one container, containerBound the time for an
// answer, and containerAsks the most questions of one sweep.
const (
	containerAgain = 6 * time.Hour
	containerBound = 2 * time.Second
	containerAsks  = 32
)

// lasting lists what a VM that has ended has left, less what the rule keeps because it is young.
func (r *retention) lasting(rec *nodev1.Record) (refs []*nodev1.SnapshotRef) {
	if r.opts.Retention.Ended <= 0 {
		return nil
	}
	surplus := map[string]bool{}
	for _, ref := range r.surplus(rec) {
		surplus[ref.GetDigest()] = true // it goes anyway
	}
	for _, ref := range transition.LeftByEnded(rec) {
		if !surplus[ref.GetDigest()] && !r.young(ref) {
			refs = append(refs, ref)
		}
	}
	return refs
}

// overdue lists those of lasting whose time has come.
func (r *retention) overdue(rec *nodev1.Record) []*nodev1.SnapshotRef {
	since := transition.Ended(rec).GetSinceUnixNano()
	if since == 0 || r.now().Sub(time.Unix(0, since)) < r.opts.Retention.Ended {
		return nil
	}
	return r.lasting(rec)
}

func (r *retention) ofEnded(ref *nodev1.SnapshotRef) *nodev1.TrimRequest {
	return &nodev1.TrimRequest{Spent: ref.GetDigest(), EndedMs: r.opts.Retention.Ended.Milliseconds()}
}

// trimEnded decides to delete what ended VMs have left, and notes first that they have ended.
func (r *retention) trimEnded(ctx context.Context, all []*nodev1.Record) error {
	var errs []error
	asks := 0
	r.forgetAsked(all)
	for _, rec := range all {
		refs := r.overdue(rec)
		switch left := r.lasting(rec); {
		case len(left) > 0 && transition.Ended(rec).GetSinceUnixNano() == 0:
			refs = left[:1] // which notes it
		case len(refs) == 0 || asks == containerAsks || r.now().Sub(r.asked[rec.GetUid()]) < containerAgain:
			continue
		default:
			asks++
			gone := r.containerGone(ctx, rec)
			if err := ctx.Err(); err != nil { // it was not asked
				return errors.Join(append(errs, err)...)
			}
			r.asked[rec.GetUid()] = r.now()
			if !gone {
				continue
			}
		}
		for _, ref := range refs {
			req := r.ofEnded(ref)
			req.Vm, req.Uid, req.Payer = rec.GetVm(), rec.GetUid(), r.deleter(ctx, ref)
			if _, err := r.Records.Trim(ctx, req); err != nil && !errdefs.IsFailedPrecondition(err) {
				errs = append(errs, records(err))
			}
		}
	}
	return errors.Join(errs...)
}

// forgetAsked drops what was asked about records that are gone.
func (r *retention) forgetAsked(all []*nodev1.Record) {
	there := make(map[string]bool, len(r.asked))
	for _, rec := range all {
		there[rec.GetUid()] = true
	}
	maps.DeleteFunc(r.asked, func(uid string, _ time.Time) bool { return !there[uid] })
}

// containerGone asks the node where the VM ended, and that only says so once it knows. Of a VM
// that ended before anybody wrote the node down its record is all there is.
func (r *retention) containerGone(ctx context.Context, rec *nodev1.Record) bool {
	node := cmp.Or(transition.Ended(rec).GetNode(), rec.GetHome())
	if node == "" {
		return true
	}
	if r.Peers == nil {
		return false
	}
	peer, err := r.Peers.Peer(node)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, containerBound)
	defer cancel()
	state, err := peer.Query(ctx, &nodev1.PeerRef{Vm: rec.GetVm(), Container: true})
	return err == nil && state.GetContainer() == nodev1.Presence_PRESENCE_NONE
}
