// Package loss is what the controller does about nodes that fall silent: it tells of them,
// and, where that is configured, gives their VMs to other nodes.
//
// A silent node is not a dead one: it may run its VMs, cut off. What makes it certain that
// it runs nothing is a fence from outside, a command that has succeeded since the node was
// heard last. Without one, nothing is given away.
package loss

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	// Interval between two looks. One that comes much later has missed what was said.
	Interval = cluster.Interval
	maxGap   = 3 * Interval

	retryPause = 15 * time.Second // after a fence or an order that failed
	parallel   = 5                // wakes of one node's VMs at once
)

// Board is what the controller knows of nodes, and where events go.
type Board interface {
	Nodes() []*nodev1.NodeInfo
	Leads(self, first string) bool
	Append(ctx context.Context, ev *nodev1.MoveEvent) error
}

// Records answers whose the VMs are.
type Records interface {
	List(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error)
}

// Mover orders a VM of a lost node to another one.
type Mover interface {
	// Choose names a node that takes VMs.
	Choose(but string) (string, error)
	Recover(ctx context.Context, req *nodev1.RecoverRequest) (*nodev1.RecoverResponse, error)
}

// Fence cuts a node off for good. Its success is the proof that the node runs nothing any
// more; it may be asked for the same node again.
type Fence func(ctx context.Context, node *nodev1.NodeInfo) error

// Watcher looks at the nodes.
type Watcher struct {
	Self    string        // the controller's node
	After   time.Duration // of silence, a node counts as lost
	Fence   Fence         // nil: losses are told, nothing else
	Board   Board
	Records Records
	Mover   Mover

	now    func() time.Time
	looked time.Time
	nodes  map[string]*known
}

// known is what the watcher has seen of a node. Silence is measured by its own clock, from
// the last sign that it saw come: neither the clocks of other controllers nor a time in
// which it heard nobody count.
type known struct {
	seen   int64     // the node's last sign, as the board has it
	at     time.Time // when that came, or when the watcher began to listen
	told   bool
	fenced bool
	failed string    // what went wrong last; it is told once
	again  time.Time // not to be tried before
}

// Run looks until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := w.Look(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "look for lost nodes", "error", err)
		}
	}
}

// Look once.
func (w *Watcher) Look(ctx context.Context) error {
	all := w.Board.Nodes()
	if !w.listen(all) || !w.Board.Leads(w.Self, "") {
		return nil
	}
	lost := w.silent(all)
	for _, n := range lost {
		vms, err := w.vms(ctx, n.GetName())
		if err == nil && !w.nodes[n.GetName()].told {
			err = w.tell(ctx, n, vms)
		}
		if err == nil && w.Fence != nil {
			err = w.give(ctx, n, vms, 2*len(lost) > len(all))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// clock is the watcher's own.
func (w *Watcher) clock() time.Time {
	if w.now == nil {
		return time.Now()
	}
	return w.now()
}

// listen notes who was heard, and reports whether this controller hears at all: what it
// tells of its own node comes back by the same way.
func (w *Watcher) listen(all []*nodev1.NodeInfo) bool {
	now := w.clock()
	deaf := now.Sub(w.looked) > maxGap
	w.looked = now
	if w.nodes == nil {
		w.nodes = map[string]*known{}
	}
	for _, n := range all {
		if k := w.nodes[n.GetName()]; k == nil || k.seen != n.GetSeenUnixNano() {
			w.nodes[n.GetName()] = &known{seen: n.GetSeenUnixNano(), at: now}
		}
	}
	if self := w.nodes[w.Self]; self == nil || now.Sub(self.at) > maxGap {
		deaf = true
	}
	for name, k := range w.nodes {
		if deaf && name != w.Self {
			k.at = now
		}
	}
	return !deaf
}

// silent answers the nodes that are lost by now.
func (w *Watcher) silent(all []*nodev1.NodeInfo) (lost []*nodev1.NodeInfo) {
	for _, n := range all {
		if n.GetName() != w.Self && !n.GetUp() && w.clock().Sub(w.nodes[n.GetName()].at) >= w.After {
			lost = append(lost, n)
		}
	}
	return lost
}

// vms answers the records of those that a node owns.
func (w *Watcher) vms(ctx context.Context, node string) (own []*nodev1.Record, err error) {
	all, err := w.Records.List(ctx, &nodev1.ListRequest{})
	for _, rec := range all.GetRecords() {
		if rec.GetOwner().GetNode() == node {
			own = append(own, rec)
		}
	}
	return own, err
}

// tell reports a loss, VM by VM.
func (w *Watcher) tell(ctx context.Context, n *nodev1.NodeInfo, vms []*nodev1.Record) error {
	seen := time.Unix(0, n.GetSeenUnixNano()).UTC().Format(time.RFC3339)
	slog.WarnContext(ctx, "node is lost", "lost", n.GetName(), "seen", seen, "vms", len(vms))
	for _, rec := range vms {
		can := "it has no snapshot: it lives or ends with that node"
		if k := transition.Kept(rec); k != nil {
			can = fmt.Sprintf("node %s holds it as it was at the switch-over of its move: godwit recover --from-source", k.GetNode())
		} else if s := newest(rec); s != nil {
			can = fmt.Sprintf("its newest snapshot is %s, %v old", s.GetDigest(), w.age(s))
		}
		err := w.event(ctx, moves.NodeLost, rec, "", fmt.Sprintf("node %s was last heard at %s; %s", n.GetName(), seen, can))
		if err != nil {
			return err
		}
	}
	w.nodes[n.GetName()].told = true
	return nil
}

func (w *Watcher) event(ctx context.Context, kind string, rec *nodev1.Record, to, reason string) error {
	return w.Board.Append(ctx, &nodev1.MoveEvent{Type: kind, Vm: rec.GetVm(), Source: rec.GetOwner().GetNode(), Destination: to, Reason: reason})
}

func newest(rec *nodev1.Record) *nodev1.SnapshotRef {
	if all := transition.Restorable(rec); len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

func (w *Watcher) age(s *nodev1.SnapshotRef) time.Duration {
	return max(0, w.clock().Sub(time.Unix(0, s.GetCreatedUnixNano()))).Round(time.Second)
}

// give fences a node and orders its VMs elsewhere, from their newest snapshots. Where most
// nodes are silent, it is rather this one that is cut off.
func (w *Watcher) give(ctx context.Context, n *nodev1.NodeInfo, vms []*nodev1.Record, most bool) error {
	k := w.nodes[n.GetName()]
	ready, under := restorable(vms)
	if len(ready) == 0 || w.clock().Before(k.again) {
		return nil
	}
	err := error(nil)
	if most {
		err = fmt.Errorf("most nodes are silent: nothing is fenced: %w", errdefs.ErrUnavailable)
	}
	if err == nil && !k.fenced {
		err = w.fence(ctx, n)
	}
	for _, rec := range ready[:min(len(ready), max(0, parallel-under))] {
		if err == nil {
			err = w.recover(ctx, rec)
		}
	}
	if err == nil {
		return nil
	}
	k.again = w.clock().Add(retryPause)
	if k.failed == err.Error() {
		return nil
	}
	k.failed = err.Error()
	slog.WarnContext(ctx, "VMs of a lost node stay", "lost", n.GetName(), "error", err)
	return w.event(ctx, moves.NodeLost, ready[0], "", err.Error())
}

// restorable answers the VMs that can be ordered elsewhere, and how many are on their way.
func restorable(vms []*nodev1.Record) (ready []*nodev1.Record, under int) {
	for _, rec := range vms {
		switch {
		case rec.GetOperation().GetKind() == nodev1.Kind_KIND_WAKE:
			under++
		case transition.Kept(rec) != nil: // newer than any snapshot: somebody decides
		case newest(rec) != nil:
			ready = append(ready, rec)
		}
	}
	return ready, under
}

// fence has the command prove that the node runs nothing. A node that was heard meanwhile
// lives, or lives again: it is not lost.
func (w *Watcher) fence(ctx context.Context, n *nodev1.NodeInfo) error {
	err := w.Fence(ctx, n)
	w.looked = w.clock() // however long that took
	if err != nil {
		return fmt.Errorf("fence node %s: %w", n.GetName(), err)
	}
	for _, now := range w.Board.Nodes() {
		if now.GetName() == n.GetName() && now.GetSeenUnixNano() != n.GetSeenUnixNano() {
			return fmt.Errorf("node %s was heard while it was fenced: %w", n.GetName(), errdefs.ErrUnavailable)
		}
	}
	w.nodes[n.GetName()].fenced = true
	slog.WarnContext(ctx, "lost node is fenced", "lost", n.GetName())
	return nil
}

// recover orders one VM elsewhere. That it is taken from the lost node is one change of its
// record: of two orders one succeeds.
func (w *Watcher) recover(ctx context.Context, rec *nodev1.Record) error {
	lost, s := rec.GetOwner().GetNode(), newest(rec)
	to, err := w.Mover.Choose(lost)
	if err != nil {
		return err
	}
	if _, err := w.Mover.Recover(ctx, &nodev1.RecoverRequest{Vm: rec.GetVm(), To: to, Fenced: true, Digest: s.GetDigest()}); err != nil {
		return err
	}
	return w.event(ctx, moves.Recovering, rec, to, fmt.Sprintf("from %s, %v old: what came after it ended with node %s", s.GetDigest(), w.age(s), lost))
}
