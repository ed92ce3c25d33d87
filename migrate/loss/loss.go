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
	"slices"
	"time"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	// Interval between two looks, about. One that comes much later has missed what was said.
	Interval = cluster.Interval
	maxGap   = 3 * Interval

	retryPause = 15 * time.Second // after a fence that failed, or the first order of a VM; it doubles with each
	parallel   = 5                // wakes of one node's VMs at once
	callBound  = 30 * time.Second // of an order or an event: a node may hang, with its VMs as well off elsewhere
)

// Cluster is what the controller knows of nodes, and where events go.
type Cluster interface {
	Nodes() []*nodev1.NodeInfo       // as the store has them now
	CachedNodes() []*nodev1.NodeInfo // as they were read last
	Leads(self, first string) bool
	Append(ctx context.Context, ev *nodev1.MoveEvent) error
}

// Records answers whose the VMs are.
type Records interface {
	List(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error)
}

// Mover orders a VM of a lost node to another one.
type Mover interface {
	// Choose names a node that takes VMs, none of those.
	Choose(ctx context.Context, but ...string) (string, error)
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
	Cluster Cluster
	Records Records
	Mover   Mover

	Now func() time.Time // nil: the host's clock

	looked time.Time
	nodes  map[string]*known
}

// known is what the watcher has seen of a node. Silence is measured by its own clock, from the
// last sign that it saw come. The clocks of other controllers do not count, nor does a time in
// which it heard no node.
type known struct {
	seen   int64     // the node's last sign, as the cluster has it
	at     time.Time // when that came, or when the watcher began to listen
	told   bool
	fenced map[string]uint64 // generations of the VMs that the node had when its fence began
	orders map[string]*order // by VM
	failed string            // what went wrong last; it is told once
	again  time.Time         // not to be fenced before
}

// Run looks each time that the nodes were read, until ctx ends. Where they cannot be read it does not
// look: that is no silence of theirs.
func (w *Watcher) Run(ctx context.Context, read <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-read:
		}
		if err := w.Look(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "look for lost nodes", "error", err)
		}
	}
}

// Look once. A fence ends a look, however it ends: what was seen before is old by then.
func (w *Watcher) Look(ctx context.Context) error {
	all := w.Cluster.CachedNodes()
	if !w.listen(all) || !w.Cluster.Leads(w.Self, "") {
		return nil
	}
	lost := w.silent(all)
	if len(lost) == 0 {
		return nil
	}
	most, err := w.most(ctx, all)
	if err != nil {
		return err
	}
	for _, n := range lost {
		vms, err := w.vms(ctx, n.GetName())
		if err == nil && !w.nodes[n.GetName()].told {
			err = w.tell(ctx, n, vms)
		}
		fenced := false
		if err == nil && w.Fence != nil {
			fenced, err = w.give(ctx, n, vms, most)
		}
		if err != nil || fenced {
			return err
		}
	}
	return nil
}

// clock is the watcher's own.
func (w *Watcher) clock() time.Time {
	if w.Now == nil {
		return time.Now()
	}
	return w.Now()
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

// silentCount counts the nodes that have missed two signs. One that is cut off hears this of most
// before it takes any for lost.
func (w *Watcher) silentCount(all []*nodev1.NodeInfo) (count int) {
	for _, n := range all {
		if n.GetName() != w.Self && w.clock().Sub(w.nodes[n.GetName()].at) > 2*Interval {
			count++
		}
	}
	return count
}

// most reports whether most nodes have fallen silent. A node that was drained, or cordoned after
// its end, and has no VM is expected to be: it is in service, or retired, and would count for
// ever.
func (w *Watcher) most(ctx context.Context, all []*nodev1.NodeInfo) (bool, error) {
	var count []*nodev1.NodeInfo
	for _, n := range all {
		if n.GetName() != w.Self && n.GetCordoned() && !n.GetUp() {
			recs, err := w.of(ctx, n.GetName())
			if err != nil {
				return false, err
			}
			if !slices.ContainsFunc(recs, func(r *nodev1.Record) bool { return has(r, n.GetName()) }) {
				continue
			}
		}
		count = append(count, n)
	}
	return 2*w.silentCount(count) > len(count), nil
}

func has(rec *nodev1.Record, node string) bool {
	return rec.GetOwner().GetNode() == node || transition.InHand(rec) == node
}

// still reports whether a node is as silent as it was when this look began.
func (w *Watcher) still(n *nodev1.NodeInfo) bool {
	return slices.ContainsFunc(w.Cluster.Nodes(), func(now *nodev1.NodeInfo) bool {
		return now.GetName() == n.GetName() && !now.GetUp() && now.GetSeenUnixNano() == n.GetSeenUnixNano()
	})
}

// of answers the records that have to do with a node.
func (w *Watcher) of(ctx context.Context, node string) ([]*nodev1.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	all, err := w.Records.List(ctx, &nodev1.ListRequest{Node: node})
	return all.GetRecords(), err
}

// vms answers the records of those that a node owns.
func (w *Watcher) vms(ctx context.Context, node string) (own []*nodev1.Record, err error) {
	all, err := w.of(ctx, node)
	for _, rec := range all {
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
			can = fmt.Sprintf("node %s holds it as it was at the switch-over of its move: godwit recover --from-source",
				k.GetNode())
		} else if s := transition.Newest(rec); s != nil {
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
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	return w.Cluster.Append(ctx, &nodev1.MoveEvent{Type: kind, Vm: rec.GetVm(), Source: rec.GetOwner().GetNode(),
		Destination: to, Reason: reason})
}

func (w *Watcher) age(s *nodev1.SnapshotRef) time.Duration {
	return max(0, w.clock().Sub(time.Unix(0, s.GetCreatedUnixNano()))).Round(time.Second)
}
