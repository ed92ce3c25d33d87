package loss

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// order is what came of the orders of one VM.
type order struct {
	count  int
	to     string    // where it was ordered last
	again  time.Time // not before
	failed string    // it is told once
}

// give fences a node, or, once it is fenced, orders its VMs elsewhere, from their newest
// snapshots. Where most nodes are silent, it is rather this one that is cut off.
func (w *Watcher) give(ctx context.Context, n *nodev1.NodeInfo, vms []*nodev1.Record, most bool) (fenced bool,
	err error) {
	k := w.nodes[n.GetName()]
	ready, under := w.restorable(vms)
	switch {
	case len(ready) == 0 || w.clock().Before(k.again) || !w.still(n):
		return false, nil
	case most:
		err = fmt.Errorf("most nodes are silent: nothing is fenced: %w", errdefs.ErrUnavailable)
	case !k.covers(ready):
		fenced, err = true, w.fence(ctx, n, vms)
	default:
		return false, w.order(ctx, n, ready, parallel-under)
	}
	if err == nil {
		return fenced, nil
	}
	k.again = w.clock().Add(retryPause)
	if k.failed == err.Error() {
		return fenced, nil
	}
	k.failed = err.Error()
	slog.WarnContext(ctx, "VMs of a lost node stay", "lost", n.GetName(), "error", err)
	return fenced, w.event(ctx, moves.NodeLost, ready[0], "", err.Error())
}

// restorable answers the VMs that can be ordered elsewhere, and how many are on their way.
// One whose destination is silent in turn is not.
func (w *Watcher) restorable(vms []*nodev1.Record) (ready []*nodev1.Record, under int) {
	nodes := w.Cluster.Nodes()
	for _, rec := range vms {
		at := transition.InHand(rec)
		up := slices.ContainsFunc(nodes, func(n *nodev1.NodeInfo) bool { return n.GetName() == at && n.GetUp() })
		switch {
		case rec.GetOperation().GetKind() == nodev1.Kind_KIND_WAKE && up && at != rec.GetOwner().GetNode():
			under++
		case transition.Kept(rec) != nil: // newer than any snapshot: somebody decides
		case transition.Newest(rec) != nil:
			ready = append(ready, rec)
		}
	}
	return ready, under
}

func key(rec *nodev1.Record) string { return rec.GetVm().GetNamespace() + "/" + rec.GetVm().GetId() }

// covers reports whether the fence has proved that the node runs none of these. One that
// came to the node since is not meant by it.
func (k *known) covers(vms []*nodev1.Record) bool {
	return !slices.ContainsFunc(vms, func(rec *nodev1.Record) bool {
		generation, ok := k.fenced[key(rec)]
		return !ok || generation != rec.GetGeneration()
	})
}

// fence has the command prove that the node runs nothing. A node that was heard meanwhile
// lives, or lives again: it is not lost.
func (w *Watcher) fence(ctx context.Context, n *nodev1.NodeInfo, vms []*nodev1.Record) error {
	had := map[string]uint64{}
	for _, rec := range vms {
		had[key(rec)] = rec.GetGeneration()
	}
	err := w.Fence(ctx, n)
	w.looked = w.clock() // however long that took
	if err != nil {
		return fmt.Errorf("fence node %s: %w", n.GetName(), err)
	}
	if !w.still(n) {
		return fmt.Errorf("node %s was heard while it was fenced: %w", n.GetName(), errdefs.ErrUnavailable)
	}
	w.nodes[n.GetName()].fenced = had
	slog.WarnContext(ctx, "lost node is fenced", "lost", n.GetName())
	return nil
}

// order so many VMs of a node elsewhere. Those that were ordered less often come first, and
// one that fails keeps none of the others.
func (w *Watcher) order(ctx context.Context, n *nodev1.NodeInfo, ready []*nodev1.Record, room int) error {
	k := w.nodes[n.GetName()]
	if k.orders == nil {
		k.orders = map[string]*order{}
	}
	for _, rec := range ready {
		if k.orders[key(rec)] == nil {
			k.orders[key(rec)] = &order{}
		}
	}
	ready = slices.DeleteFunc(ready, func(rec *nodev1.Record) bool { return w.clock().Before(k.orders[key(rec)].again) })
	slices.SortStableFunc(ready, func(a, b *nodev1.Record) int {
		return cmp.Compare(k.orders[key(a)].count, k.orders[key(b)].count)
	})
	var errs []error
	for _, rec := range ready[:min(len(ready), max(0, room))] {
		if !w.still(n) {
			break
		}
		errs = append(errs, w.recover(ctx, rec, k.orders[key(rec)]))
	}
	w.looked = w.clock() // however long that took
	return errors.Join(errs...)
}

// recover orders one VM elsewhere, and another time to another node. That it is taken from
// the lost node is one change of its record: of two orders one succeeds, and none if the
// record is not the one that was looked at.
func (w *Watcher) recover(ctx context.Context, rec *nodev1.Record, o *order) error {
	o.again = w.clock().Add(retryPause << min(o.count, 6))
	o.count++
	lost, s := rec.GetOwner().GetNode(), transition.Newest(rec)
	to, err := w.choose(ctx, lost, o.to)
	if err == nil {
		o.to = to
		err = w.ask(ctx, &nodev1.RecoverRequest{
			Vm: rec.GetVm(), To: to, Fenced: true, Digest: s.GetDigest(), LostNode: transition.InHand(rec),
			Generation: rec.GetGeneration(),
		})
	}
	switch {
	case err == nil:
		return w.event(ctx, moves.Recovering, rec, to, fmt.Sprintf("from %s, %v old: what came after it ended with node %s",
			s.GetDigest(), w.age(s), lost))
	case o.failed == err.Error():
		return nil
	}
	o.failed = err.Error()
	slog.WarnContext(ctx, "VM of a lost node stays", "vm", key(rec), "lost", lost, "error", err)
	if errdefs.IsFailedPrecondition(err) { // it is not as it was: the next look sees how it is
		return nil
	}
	return w.event(ctx, moves.NodeLost, rec, to, err.Error())
}

func (w *Watcher) choose(ctx context.Context, lost, last string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	if to, err := w.Mover.Choose(ctx, lost, last); err == nil {
		return to, nil
	}
	return w.Mover.Choose(ctx, lost) // there is no other
}

func (w *Watcher) ask(ctx context.Context, req *nodev1.RecoverRequest) error {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	_, err := w.Mover.Recover(ctx, req)
	return err
}
