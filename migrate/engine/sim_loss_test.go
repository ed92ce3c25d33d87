package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/loss"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// lossAfter is how long a node may be silent, and signs how long one of its signs makes it count as up.
const (
	lossAfter = 60 * time.Second
	upAfter   = 16 * time.Second
)

// simLoss is the controller that looks for silent nodes, by the real loss.Watcher: what it hears comes
// late, and what it orders fails.
type simLoss struct {
	r      *simRounds
	time   time.Time
	seen   map[string]time.Time
	fences bool     // by policy: their VMs go elsewhere
	off    *simNode // is to be switched off
	taken  int      // VMs of silent nodes that were ordered elsewhere
}

// outside is a call of a node to the records: it comes nowhere while the node is cut off, and its
// answer does not come back.
func outside[Q, R any](n *simNode, method func(context.Context, Q) (R, error), req Q) (R, error) {
	var none R
	away := fmt.Errorf("records, from %s: %w", n.name, errdefs.ErrUnavailable)
	n.yield()
	if n.cut > 0 {
		return none, away
	}
	resp, err := method(context.Background(), req)
	if n.cut > 0 {
		return none, away
	}
	return resp, err
}

// watching is the loop of the controller's looks.
func (l *simLoss) watching() {
	w := &loss.Watcher{Self: "controller", After: lossAfter, Cluster: l, Records: l, Mover: l, Now: func() time.Time {
		return l.time
	}}
	if l.fences {
		w.Fence = l.fence
	}
	for {
		for range 5 {
			l.r.s.yield()
		}
		l.time = l.time.Add(loss.Interval)
		l.seen["controller"] = l.time
		if err := w.Look(context.Background()); err != nil {
			l.r.s.trace = append(l.r.s.trace, fmt.Sprintf("look for lost nodes: %v", err))
		}
	}
}

// Nodes implements loss.Cluster.
func (l *simLoss) Nodes() (all []*nodev1.NodeInfo) {
	for _, name := range append([]string{"controller"}, simNodes...) {
		all = append(all, &nodev1.NodeInfo{Name: name, Address: name, SeenUnixNano: l.seen[name].UnixNano(), Up: l.up(name)})
	}
	return all
}

// CachedNodes implements loss.Cluster.
func (l *simLoss) CachedNodes() []*nodev1.NodeInfo { return l.Nodes() }

func (l *simLoss) up(name string) bool { return l.time.Sub(l.seen[name]) < upAfter }

// Leads implements loss.Cluster.
func (l *simLoss) Leads(string, string) bool { return true }

// Append implements loss.Cluster.
func (l *simLoss) Append(context.Context, *nodev1.MoveEvent) error { l.r.s.yield(); return nil }

// List implements loss.Records.
func (l *simLoss) List(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	return stored(&l.r.s.schedule, ctx, l.r.s.records.List, req)
}

// Choose implements loss.Mover.
func (l *simLoss) Choose(_ context.Context, but ...string) (string, error) {
	l.r.s.yield()
	to := pick(&l.r.s.schedule, simNodes)
	for _, name := range but {
		if name == to || !l.up(to) {
			return "", fmt.Errorf("no node: %w", errdefs.ErrUnavailable)
		}
	}
	return to, nil
}

// fence is a command that switches a node off for a while. It may fail before that, or its word be lost.
func (l *simLoss) fence(_ context.Context, n *nodev1.NodeInfo) error {
	s, failed := l.r.s, fmt.Errorf("the fence of %s: %w", n.GetName(), errdefs.ErrUnavailable)
	if s.yield(); s.chance(20) || !s.faults || !l.r.lose() {
		return failed
	}
	for l.off = s.nodes[n.GetName()]; l.off != nil; {
		s.yield()
	}
	if s.chance(10) {
		return failed
	}
	return nil
}

// switchOff does what a fence waits for.
func (l *simLoss) switchOff() {
	if l == nil || l.off == nil {
		return
	}
	l.r.s.reboots++
	l.off.reboot()
	l.off.cut = 300 + l.r.s.rng.IntN(2000)
	l.r.s.trace = append(l.r.s.trace, l.off.name+" is fenced")
	l.off = nil
}

// Recover implements loss.Mover as the service of moves does: the wake is opened here, and its
// destination drives it.
func (l *simLoss) Recover(ctx context.Context, req *nodev1.RecoverRequest) (*nodev1.RecoverResponse, error) {
	s := l.r.s
	rec, err := stored(&s.schedule, ctx, s.records.Get, &nodev1.GetRequest{Vm: vm})
	if err != nil {
		return nil, err
	}
	lost, to := transition.InHand(rec), s.nodes[req.GetTo()]
	if lost != req.GetLostNode() || rec.GetGeneration() != req.GetGeneration() || lost == "" || l.up(lost) || !l.r.lose() {
		return nil, fmt.Errorf("recover: node %q has it: %w", lost, errdefs.ErrFailedPrecondition)
	}
	if to.cut > 0 {
		return nil, fmt.Errorf("recover at %s: %w", to.name, errdefs.ErrUnavailable)
	}
	id := l.r.id("r")
	op := &nodev1.Operation{Id: id, Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Generation: rec.GetGeneration(),
		Destination: to.name, Digest: req.GetDigest(), Managed: true}
	open := &nodev1.OpenRequest{Vm: vm, Operation: op, ForceDigest: req.GetDigest(), LostNode: lost}
	if rec, err = s.records.Open(ctx, open); err != nil {
		return nil, err
	}
	l.taken++
	s.last = s.blobs[req.GetDigest()] // what came after it ended with the node
	s.trace = append(s.trace, fmt.Sprintf("%s of %s: %s wakes %s", id, lost, to.name, req.GetDigest()))
	_, err = call(&s.schedule, "wake", to.name, func() (*nodev1.StatusResponse, error) {
		return to.round.engine.Wake(impatient(), &nodev1.WakeRequest{Vm: vm, Operation: id, Digest: req.GetDigest(),
			Generation: rec.GetGeneration(), Uid: rec.GetUid()})
	})
	return &nodev1.RecoverResponse{}, err
}
