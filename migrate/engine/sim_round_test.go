package engine

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/model"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	roundInterval = 15 * time.Second      // of a node's clock
	stepInterval  = 20 * time.Millisecond // of the controllers' clock
)

// simRounds are the nodes' rounds, and what happens to the VM in addition to moves: users let it sleep and wake,
// and boot it where its record lets them. Nodes are cut off and are taken for lost. Its store is put back from a
// copy.
type simRounds struct {
	s       *simulation
	uid     string // of the VM
	whole   *controller.Incarnations
	copied  *storetest.Memory // of the store; nil: there is none
	gen     uint64            // that had run by then
	mild    bool              // less fails, so that more moves end well
	goes    bool              // the store may be put back
	back    int               // how often it was
	said    map[string]uint64 // the generation that a node has reported since it was put back
	ids     int               // of orders
	loss    *simLoss
	command bool // with godwit controller restore
	liar    bool // one more node says then that it has the VM (lie)
	retired int  // how often it was retired for that
	steps   int
	tags    []Leftover // in the registry
	dropped int
	pins    simPins
	pods    bool       // the VM is a pod
	places  *simPlaces // nil: each operation is opened with its destination
}

// actors of the rounds: two a node.
func (r *simRounds) actors() int {
	if r == nil {
		return 0
	}
	return 2*len(simNodes) + 1 // and the watcher
}

func newSimRounds(seed uint64) *simulation {
	s := newSimulation(seed, model.None, false)
	rec, err := s.records.Get(context.Background(), &nodev1.GetRequest{Vm: vm})
	if err != nil {
		panic(err)
	}
	r := &simRounds{s: s, uid: rec.GetUid(), mild: seed%4 > 0, goes: seed%3 == 0, liar: seed%6 == 3,
		said: map[string]uint64{}}
	r.pins.sure = map[string]bool{}
	r.loss = &simLoss{r: r, time: time.Unix(1_800_000_000, 0), seen: map[string]time.Time{}, fences: seed%2 == 0}
	s.rounds = r
	if r.mild {
		s.rare = 6
	}
	s.nodes["a"].task = true
	r.whole = controller.NewIncarnations(s.memory, s.memory, simNodes[0], func() []string {
		return r.known()
	}, func() time.Time {
		return time.Unix(1_800_000_000, 0).Add(time.Duration(r.steps) * stepInterval)
	})
	for _, name := range simNodes {
		n := s.nodes[name]
		n.round = &simRound{clock: time.Unix(1_800_000_000, 0)}
		r.begin(n)
	}
	s.spawn("watch", "watcher", r.loss.watching)
	return s
}

// simRound is what a node remembers in addition to its journal.
type simRound struct {
	clock          time.Time
	seen, reported uint64                   // incarnations, durably
	told           *nodev1.AnnounceResponse // since its daemon began
	host           *simHost
	engine         *Engine
	lists          []*nodev1.ListResponse // that it was answered
}

// begin starts a node's daemon.
func (r *simRounds) begin(n *simNode) {
	n.busy, n.starting, n.claiming = false, false, false
	n.round.told, n.round.host = nil, &simHost{simNode: n}
	n.round.engine = n.engine(n.round.host)
	r.s.spawn("rounds", n.name, n.rounding)
	r.s.spawn("announce", n.name, n.announcing)
}

// rounding is the loop of the daemon's rounds, by the real engine.
func (n *simNode) rounding() {
	h, e := n.round.host, n.round.engine
	ctx := context.Background()
	for {
		n.yield()
		n.adopt(ctx, h)
		if err := e.Round(ctx, h.list); err != nil {
			n.trace = append(n.trace, fmt.Sprintf("round of %s: %v", n.name, err))
		}
		for _, do := range []func(context.Context) error{e.Sweep, e.Scan} {
			if err := do(ctx); err != nil {
				n.trace = append(n.trace, fmt.Sprintf("sweep of %s: %v", n.name, err))
			}
		}
		n.round.clock = n.round.clock.Add(roundInterval)
		n.looked++
	}
}

// adopt starts a successor of a shim that does not answer; that there is none, it sees itself.
func (n *simNode) adopt(ctx context.Context, h *simHost) {
	_, err := h.Query(ctx, vm)
	if errdefs.IsUnavailable(err) && n.unread == 0 && n.headless {
		n.headless = false
		n.succeed()
	}
}

// list is what the node's directory has.
func (h *simHost) list() ([]*nodev1.VM, error) {
	h.yield()
	switch {
	case h.unread > 0:
		return nil, syscall.EMFILE
	case h.chance(3):
		return nil, syscall.EIO
	case h.record == "":
		return nil, nil
	}
	return []*nodev1.VM{vm}, nil
}

// disturb lets happen what rounds may meet.
func (r *simRounds) disturb() {
	s := r.s
	r.steps++
	for _, name := range simNodes {
		n := s.nodes[name]
		n.unread, n.cut = max(0, n.unread-1), max(0, n.cut-1)
	}
	r.loss.switchOff()
	r.lie()
	if r.pods && s.rng.IntN(25) == 0 {
		r.kubelet(s.nodes[pick(&s.schedule, simNodes)])
	}
	switch n := s.rng.IntN(1000); {
	case n < 1 && s.faults:
		s.nodes[pick(&s.schedule, simNodes)].unread = 200 + s.rng.IntN(1500)
	case n < 10:
		r.boot(s.nodes[pick(&s.schedule, simNodes)])
	case n < 40:
		r.user(s.nodes[pick(&s.schedule, simNodes)])
	case n < 46 && (s.faults || !r.pods): // a pin is a change of the record, from which a round counts its grace anew
		r.pin(s.nodes[pick(&s.schedule, simNodes)])
	case n < 47 && s.faults:
		s.nodes[pick(&s.schedule, simNodes)].cut = 200 + s.rng.IntN(3000)
	case n < 67 && s.faults && r.goes && r.copied == nil:
		r.copy()
	case n < 71 && s.faults && r.copied != nil && r.back == 0 && (s.gen > r.gen || s.rng.IntN(200) == 0):
		r.putBack()
	}
}

// copy of the store: rather of one in which the VM sleeps, since anybody may run it whom the copy believes.
func (r *simRounds) copy() {
	rec, err := r.s.records.Get(context.Background(), &nodev1.GetRequest{Vm: vm})
	rare := 400
	if rec.GetOperation() == nil {
		rare = 40
	}
	if err == nil && (rec.GetOwner().GetDigest() != "" && rec.GetOperation() == nil || r.s.rng.IntN(rare) == 0) {
		r.copied, r.gen = r.s.memory.Copy(), r.s.gen
	}
}

// putBack puts the copy back, while no controller runs.
func (r *simRounds) putBack() {
	s := r.s
	controllers := []string{"c1", "c2"}
	for _, c := range controllers {
		s.kill(c)
	}
	before, err := s.memory.Load(context.Background(), vm, transition.Asked{})
	if err != nil {
		panic(err)
	}
	s.memory.PutBack(r.copied)
	r.back++
	clear(r.pins.sure) // of pins since the copy nothing knows
	st, err := s.memory.Load(context.Background(), vm, transition.Asked{})
	if err != nil {
		panic(err)
	}
	// Without the command an operation that the copy has open is driven on at once: it may be one which was committed
	// since. And what a node knew that was started anew since is gone; so is what no node knows, of a VM that sleeps.
	open, newest := st.Record.GetOperation() != nil, max(s.gen, before.Record.GetGeneration())
	forgotten := newest > st.Record.GetGeneration() && !slices.ContainsFunc(simNodes, func(name string) bool {
		return s.nodes[name].has() && s.nodes[name].journal() >= newest
	})
	if r.command = open || forgotten || s.reboots > 0 || s.rng.IntN(2) == 0; r.command {
		if _, err := r.whole.Restore(context.Background(), &nodev1.RestoreRequest{}); err != nil {
			panic(err)
		}
	}
	s.trace = append(s.trace, fmt.Sprintf("the store is put back, command %v", r.command))
	for _, c := range controllers {
		s.spawn(c, c, func() { s.control(c) })
	}
}

// lose reports whether a node may lose what it knows.
func (r *simRounds) lose() bool { return r == nil || r.back == 0 || r.command }

// has reports whether the VM is at a node, as its journal says.
func (n *simNode) has() bool {
	return slices.Contains([]string{recordOwn, recordSending, recordPrepared}, n.record)
}

// noticed asks about a store that went back without the command, and about the claims that this store does not
// know. It reports whether each node that has the VM under such a claim has said so. Before that nothing can keep
// another node from running the VM.
func (r *simRounds) noticed() bool {
	if r.back == 0 || r.command {
		return true
	}
	st, err := r.s.memory.Load(context.Background(), vm, transition.Asked{})
	return err == nil && !slices.ContainsFunc(simNodes, func(name string) bool {
		n := r.s.nodes[name]
		return n.claiming || n.has() && n.journal() > st.Record.GetGeneration() && r.said[name] < n.journal()
	})
}

// boot is somebody who runs the VM anew on a node, where its record lets the node claim it.
func (r *simRounds) boot(n *simNode) {
	if n.headless || n.unread > 0 || n.cut > 0 || !slices.Contains([]string{"", recordReleased, recordFenced}, n.record) ||
		!r.noticed() {
		return
	}
	r.s.spawn("boot", n.name, func() {
		rec, err := n.get()
		if err == nil && (rec.GetOwner().GetDigest() != "" || rec.GetOwner().GetNode() != "" &&
			rec.GetOwner().GetNode() != n.name) {
			return
		}
		if err == nil {
			rec, err = n.records.Own(context.Background(), &nodev1.OwnRequest{Vm: vm, Node: n.name,
				Generation: rec.GetGeneration(), Uid: rec.GetUid()})
		}
		if err != nil {
			return
		}
		n.trace = append(n.trace, fmt.Sprintf("%s boots the VM under %d", n.name, rec.GetGeneration()))
		if n.chance(30) { // its shim stands still between claim and journal
			for range n.rng.IntN(500) {
				n.yield()
			}
		}
		if !slices.Contains([]string{"", recordReleased, recordFenced}, n.record) {
			return // it came here meanwhile
		}
		n.gen, n.vmm, n.count, n.made, n.task = rec.GetGeneration(), vmmOff, n.last, nil, true
		n.pod.sandbox, n.pod.self = nil, false
		n.write(recordOwn, nil)
		r.start(n, rec)
	})
}

// start lets a VM run that was booted, once its record bears the claim out: the rules are those of the
// shim's Start (VM.claimed).
func (r *simRounds) start(n *simNode, claim *nodev1.Record) {
	now, err := outside(n, func(ctx context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
		return stored(&r.s.schedule, ctx, n.records.Get, req)
	}, &nodev1.GetRequest{Vm: vm})
	if n.record != recordOwn || n.gen != claim.GetGeneration() || n.vmm != vmmOff {
		return
	}
	if err != nil || now.GetOwner().GetNode() != n.name || now.GetGeneration() != n.gen || now.GetMissing() {
		n.trace = append(n.trace, fmt.Sprintf("%s does not start what it claimed under %d", n.name, n.gen))
		n.task = false
		n.write("", nil)
		return
	}
	n.count = n.last
	n.run(n.gen)
}
