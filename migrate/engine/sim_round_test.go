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

// The mutations of the nodes' rounds, after the six of package model.
const (
	AbsentByList  model.Mutation = "absent-by-list"      // a list that cannot be read is empty, and nobody else is asked
	RoundKills    model.Mutation = "round-kills"         // the shim's word of before is enough, and whoever is told to end ends
	StoreWentBack model.Mutation = "store-went-back"     // nobody tells a controller what nodes hold
	roundInterval                = 15 * time.Second      // of a node's clock
	stepInterval                 = 20 * time.Millisecond // of the controllers' clock
)

// simRounds are the nodes' rounds, and what happens to the VM besides moves: its store is put back
// from a copy, and whoever wants it boots it where its record lets him.
type simRounds struct {
	s       *simulation
	uid     string // of the VM
	whole   *controller.Incarnations
	copied  *storetest.Memory // of the store; nil: there is none
	gen     uint64            // that had run by then
	mild    bool              // less fails, so that more moves end well
	goes    bool              // the store may be put back
	back    int               // how often it was
	hidden  bool              // somebody holds what it did not know
	command bool              // with godwit controller restore
	steps   int
	tags    []Leftover // in the registry
	dropped int
}

// actors of the rounds: two a node.
func (r *simRounds) actors() int {
	if r == nil {
		return 0
	}
	return 2 * len(simNodes)
}

func newSimRounds(seed uint64, m model.Mutation) *simulation {
	s := newSimulation(seed, m, false)
	rec, err := s.records.Get(context.Background(), &nodev1.GetRequest{Vm: vm})
	if err != nil {
		panic(err)
	}
	r := &simRounds{s: s, uid: rec.GetUid(), mild: seed%4 > 0, goes: seed%3 == 0}
	s.rounds = r
	r.whole = controller.NewIncarnations(s.memory, s.memory, "c1", func() []string { return simNodes }, func() time.Time {
		return time.Unix(1_800_000_000, 0).Add(time.Duration(r.steps) * stepInterval)
	})
	for _, name := range simNodes {
		n := s.nodes[name]
		n.round = &simRound{clock: time.Unix(1_800_000_000, 0)}
		r.begin(n)
	}
	return s
}

// simRound is what a node remembers beside its journal.
type simRound struct {
	clock          time.Time
	seen, reported uint64                   // incarnations, durably
	told           *nodev1.AnnounceResponse // since its daemon began
	host           *simHost
}

// begin starts a node's daemon.
func (r *simRounds) begin(n *simNode) {
	n.round.told, n.round.host = nil, &simHost{simNode: n}
	r.s.spawn("rounds", n.name, n.rounding)
	r.s.spawn("announce", n.name, n.announcing)
}

// rounding is the loop of the daemon's rounds, by the real engine.
func (n *simNode) rounding() {
	h := n.round.host
	e := New(Parts{
		Records: simRoundRecords{simRecords{RecordsService: n.records, s: n.simulation}, n}, Machines: h, Observer: h, Tasks: simTasks{h}, Leavings: simLeavings{h},
		Snapshots: simRegistry{h: h}, Events: Sinks{}, Store: h,
	}, Options{
		Node: n.name, Repository: func(*nodev1.Record) string { return "r/x" }, Step: time.Hour, AtOnce: 1,
		Retention: Retention{Grace: 4 * roundInterval, Scans: n.name == simNodes[0]},
	})
	e.now = func() time.Time { return n.round.clock }
	if n.mutation == StoreWentBack {
		e.Store = nil
	}
	ctx := context.Background()
	for {
		n.yield()
		n.adopt(ctx, h)
		if err := e.Reconcile(ctx, h.list); err != nil {
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
	h.byList = h.mutation == AbsentByList && (h.unread > 0 || h.record == "")
	switch {
	case h.unread > 0 && h.mutation == AbsentByList:
		return nil, nil
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
		s.nodes[name].unread = max(0, s.nodes[name].unread-1)
	}
	switch n := s.rng.IntN(1000); {
	case n < 1 && s.faults:
		s.nodes[pick(&s.schedule, simNodes)].unread = 200 + s.rng.IntN(1500)
	case n < 10:
		r.boot(s.nodes[pick(&s.schedule, simNodes)])
	case n < 12 && s.faults && r.goes && r.copied == nil:
		r.copied, r.gen = s.memory.Copy(), s.gen
	case n < 16 && s.faults && r.copied != nil && r.back == 0 && (s.gen > r.gen || s.rng.IntN(20) == 0):
		r.putBack()
	}
}

// putBack puts the copy back, while no controller runs.
func (r *simRounds) putBack() {
	s := r.s
	controllers := []string{"c1", "c2"}
	for _, c := range controllers {
		s.kill(c)
	}
	s.memory.PutBack(r.copied)
	r.back++
	// Without the command an operation that the copy has open is driven on at once: nobody can keep
	// that from being one which was committed since. And what a node knew that was started anew since is gone.
	st, err := s.memory.Load(context.Background(), vm, transition.Asked{})
	if err != nil {
		panic(err)
	}
	open := st.Record.GetOperation() != nil
	if r.command = (open || s.reboots > 0 || s.rng.IntN(2) == 0) && s.mutation != StoreWentBack; r.command {
		if _, err := r.whole.Restore(context.Background(), &nodev1.RestoreRequest{}); err != nil {
			panic(err)
		}
	}
	r.hidden = !r.command && s.mutation != StoreWentBack && slices.ContainsFunc(simNodes, func(name string) bool {
		return s.nodes[name].record != "" && s.nodes[name].journal() > st.Record.GetGeneration()
	})
	s.trace = append(s.trace, fmt.Sprintf("the store is put back, command %v", r.command))
	for _, c := range controllers {
		s.spawn(c, c, func() { s.control(c) })
	}
}

// lose reports whether a node may lose what it knows.
func (r *simRounds) lose() bool { return r == nil || r.back == 0 || r.command }

// noticed reports whether a store that went back without the command was noticed, or nobody holds what
// it did not know: before that node has been heard, nobody can keep another one from booting the VM.
func (r *simRounds) noticed() bool {
	st, err := r.s.memory.State(context.Background())
	return !r.hidden || err == nil && (transition.Closed(st) != nil || transition.Doubted(st, vm, nil) != nil)
}

// boot is somebody who runs the VM anew on a node, where its record lets the node claim it.
func (r *simRounds) boot(n *simNode) {
	if n.headless || n.unread > 0 || !slices.Contains([]string{"", recordReleased, recordFenced}, n.record) || !r.noticed() {
		return
	}
	r.s.spawn("boot", n.name, func() {
		rec, err := n.records.Get(context.Background(), &nodev1.GetRequest{Vm: vm})
		if err == nil && (rec.GetOwner().GetDigest() != "" || rec.GetOwner().GetNode() != "" && rec.GetOwner().GetNode() != n.name) {
			return
		}
		if err == nil {
			rec, err = n.records.Own(context.Background(), &nodev1.OwnRequest{Vm: vm, Node: n.name, Generation: rec.GetGeneration(), Uid: rec.GetUid()})
		}
		if err != nil {
			return
		}
		n.trace = append(n.trace, fmt.Sprintf("%s boots the VM under %d", n.name, rec.GetGeneration()))
		n.gen, n.vmm, n.count, n.made = rec.GetGeneration(), vmmOff, n.last, nil
		n.write(recordOwn, nil)
		if n.record == recordOwn && n.gen == rec.GetGeneration() && n.vmm == vmmOff {
			n.count = n.last
			n.run(n.gen)
		}
	})
}
