package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/model"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// simulation is one VM that is moved about between three nodes, by two controllers over one store. Its seed decides
// what fails, and in which order all of them act. The engine, its steps and the rules of the records are the real
// ones; the nodes are simNodes.
type simulation struct {
	schedule
	memory   *storetest.Memory
	records  nodev1.RecordsService
	nodes    map[string]*simNode
	mutation model.Mutation
	trusting bool // nodes do not ask the record before they run a VM
	blobs    map[string]int
	captures int
	reboots  int
	orders   int

	runner string // who ran last
	gen    uint64 // the highest that ran
	last   int    // of the VM's counter, as the world has seen it
	broken []string
	trace  []string
	heard  []*heard
	first  hands           // whose the VM was
	clock  int64           // of what was heard
	edges  map[string]bool // of nodes' records and of phases
	phase  string          // of the open operation
	doom   string          // a node dies in this phase; empty: at any time
	rounds *simRounds      // nil: the nodes' rounds are no actors of their own
}

var simNodes = []string{"a", "b", "c"}

func newSimulation(seed uint64, m model.Mutation, trusting bool) *simulation {
	s := &simulation{
		schedule: schedule{rng: rand.New(rand.NewPCG(seed, 1)), faults: true, twice: 5}, mutation: m, trusting: trusting,
		nodes: map[string]*simNode{}, blobs: map[string]int{}, edges: map[string]bool{},
	}
	s.memory = storetest.NewMemory()
	s.records = controller.New(s.memory)
	for _, name := range simNodes {
		s.nodes[name] = &simNode{simulation: s, name: name, vmm: vmmOff}
	}
	ctx := context.Background()
	_, err := s.records.Ensure(ctx, &nodev1.EnsureRequest{Vm: vm})
	var rec *nodev1.Record
	if err == nil {
		rec, err = s.records.Own(ctx, &nodev1.OwnRequest{Vm: vm, Node: "a"})
	}
	if err != nil {
		panic(err)
	}
	a := s.nodes["a"]
	if m == model.RunNotFenced {
		s.twice = 40
	}
	s.doom = pick(&s.schedule, []string{"", "preparing", "aborting", "committed", "reverting"})
	a.record, a.gen, a.vmm = recordOwn, rec.GetGeneration(), vmmRuns
	s.runner, s.gen, s.first = "a", a.gen, hands{a.gen, "a"}
	for _, c := range []string{"c1", "c2"} {
		s.spawn(c, c, func() { s.control(c) })
	}
	return s
}

// note remembers a change of a node's record.
func (s *simulation) note(from, to string) { s.edges["node "+from+" "+to] = true }

func (s *simulation) violated(format string, args ...any) {
	s.broken = append(s.broken, fmt.Sprintf(format, args...))
}

// ran watches over I1 and I2: one runner, and no generation after a later one.
func (s *simulation) ran(n *simNode, gen uint64) {
	s.trace = append(s.trace, fmt.Sprintf("%s runs %d", n.name, gen))
	n.allArmed()
	n.inPlace(gen)
	s.heardOf(n, gen)
	for _, name := range simNodes {
		if other := s.nodes[name]; other != n && other.vmm == vmmRuns {
			s.violated("I1: %s and %s run", other.name, n.name)
		}
	}
	if gen < s.gen || gen == s.gen && s.runner != n.name {
		s.violated("I2: %s runs generation %d after %s ran %d", n.name, gen, s.runner, s.gen)
	}
	s.runner, s.gen = n.name, max(s.gen, gen)
}

// gone watches over I3: what a node gives up is somewhere else.
func (s *simulation) gone() {
	for _, n := range s.nodes {
		if n.vmm == vmmRuns || n.vmm == vmmPaused || n.vmm == vmmFrozen {
			return
		}
	}
	if s.reboots == 0 && !s.rounds.stored() {
		s.violated("I3: no copy is left")
	}
}

// tick lets the guest count, where it runs.
func (s *simulation) tick() {
	for _, name := range simNodes {
		if n := s.nodes[name]; n.vmm == vmmRuns {
			n.count++
			s.heardOf(n, n.gen)
			if n.count != s.last+1 {
				s.violated("the VM counts %d on %s, %d was seen", n.count, n.name, s.last)
			}
			s.last = n.count
		}
	}
}

// control is a controller: it drives what is open, and orders moves.
func (s *simulation) control(place string) {
	parts := Parts{Records: simRecords{RecordsService: s.records, s: s}, Peers: simPeers{s}, Events: Sinks{},
		Snapshots: simStore{}}
	if s.rounds != nil && s.rounds.places != nil {
		parts.Places = s.rounds.places
	}
	e := New(parts, Options{
		Node: place, Repository: func(*nodev1.Record) string {
			return "r/x"
		}, Operation: time.Hour, Patience: 1, Step: time.Hour, Abort: time.Hour,
	})
	ctx := context.Background()
	for {
		s.yield()
		rec, err := s.records.Get(ctx, &nodev1.GetRequest{Vm: vm})
		if err != nil {
			panic(err)
		}
		op := rec.GetOperation()
		if op == nil {
			s.order(ctx, rec)
			continue
		}
		if !e.drives(op) { // its node does, or did: a VM that sleeps is woken elsewhere
			if op.GetKind() == nodev1.Kind_KIND_HIBERNATE {
				s.wakeSomewhere(ctx, rec)
			}
			continue
		}
		r := &run{vm: vm, id: op.GetId(), kind: op.GetKind()}
		for settled := false; !settled; {
			before := op.GetPhase()
			if settled, err = e.turn(ctx, r); err != nil {
				s.trace = append(s.trace, fmt.Sprintf("%s in %s: %v", place, before, err))
			}
			s.yield()
		}
	}
}

// order opens a move, a few times in a life.
func (s *simulation) order(ctx context.Context, rec *nodev1.Record) {
	owner := rec.GetOwner().GetNode()
	if owner == "" {
		s.wakeSomewhere(ctx, rec)
	}
	if !s.faults || s.orders >= 4 || owner == "" || s.rng.IntN(3) > 0 {
		return
	}
	s.orders++
	to := pick(&s.schedule, simNodes)
	_, err := s.records.Open(ctx, &nodev1.OpenRequest{Vm: vm, Operation: s.unplaced(&nodev1.Operation{
		Id: fmt.Sprintf("op%d", s.orders), Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Generation: rec.GetGeneration(),
		Managed: true,
		Source:  owner, Destination: to, Mode: pick(&s.schedule, s.modes()),
	})})
	if err == nil {
		s.edges["phase idle preparing"] = true
		s.trace = append(s.trace, fmt.Sprintf("op%d: %s to %s", s.orders, owner, to))
	}
}

// meddle is a user who calls a move off, or turns it to another node.
func (s *simulation) meddle() {
	ctx := context.Background()
	rec, err := s.records.Get(ctx, &nodev1.GetRequest{Vm: vm})
	op := rec.GetOperation()
	if err != nil || op == nil || !abortable(op.GetPhase()) {
		return
	}
	req := &nodev1.AdvanceRequest{Vm: vm, Operation: op.GetId(), Attempt: op.GetAttempt(), Generation: op.GetGeneration(),
		Phase: nodev1.Phase_PHASE_ABORTING, Reason: "by order"}
	if to := pick(&s.schedule, simNodes); to != op.GetSource() && s.rng.IntN(2) == 0 {
		req.Retarget = to
	} else {
		req.Cancelled = true
	}
	_, _ = simRecords{RecordsService: s.records, s: s, quiet: true}.Advance(ctx, req)
}

// disturb lets something go wrong, or the guest go on.
func (s *simulation) disturb() {
	switch n := s.rng.IntN(1000); {
	case n < 250:
		s.tick()
	case n < 270 && len(s.late) > 0:
		i := s.rng.IntN(len(s.late))
		s.late[i]()
		s.late = slices.Delete(s.late, i, i+1)
	case n < 285:
		c := pick(&s.schedule, []string{"c1", "c2"})
		s.kill(c)
		s.spawn(c, c, func() { s.control(c) })
	case n < 300:
		s.nodes[pick(&s.schedule, simNodes)].crash()
	case (n < 303 && s.doom == "" || n > 900 && s.doom != "" && s.doom == s.phase) && s.reboots == 0 && s.rounds.lose():
		s.reboots++
		s.nodes[pick(&s.schedule, simNodes)].reboot()
	case n < 320:
		s.nodes[pick(&s.schedule, simNodes)].selfResume()
	case n < 330:
		s.meddle()
	case n < 350 && s.rounds == nil: // else the engine does
		s.nodes[pick(&s.schedule, simNodes)].reconcile()
	}
}

// live plays a history: a time of failures, then a calm one in which everything settles
// (I4).
func (s *simulation) live() {
	for range 600 {
		s.step(pick(&s.schedule, s.actors))
		s.disturb()
		if len(s.broken) > 0 {
			return
		}
	}
	s.faults = false
	for _, name := range simNodes { // what was held up by a dead caller ends by its deadline
		s.nodes[name].crash()
	}
	for range 4000 {
		s.step(pick(&s.schedule, s.actors))
		s.nodes[pick(&s.schedule, simNodes)].reconcile()
		if s.rng.IntN(4) == 0 {
			s.tick()
		}
		if len(s.broken) > 0 || s.settled() {
			return
		}
	}
	rec, _ := s.records.Get(context.Background(), &nodev1.GetRequest{Vm: vm})
	s.violated("I4: not settled: %v, %s", rec, s)
}

func (s *simulation) String() string {
	out := ""
	for _, name := range simNodes {
		n := s.nodes[name]
		out += fmt.Sprintf("%s: %s of %s/%d, generation %d, VMM %s; ", name, n.record, n.ref.GetOperation(),
			n.ref.GetAttempt(), n.gen, n.vmm)
	}
	return out
}

// settled: nothing is open and the record's owner runs the VM, or a node failure took it.
func (s *simulation) settled() bool {
	rec, err := s.records.Get(context.Background(), &nodev1.GetRequest{Vm: vm})
	if err != nil || rec.GetOperation() != nil || len(s.actors) > 2+s.rounds.actors() {
		return false
	}
	owner := s.nodes[rec.GetOwner().GetNode()]
	if s.rounds.stored() { // it sleeps
		return true
	}
	if owner == nil || owner.vmm != vmmRuns && s.reboots == 0 {
		s.violated("I4: settled, and %v has it: %s", rec.GetOwner(), s)
	}
	return true
}

// end stops all actors.
func (s *simulation) end() {
	for _, a := range slices.Clone(s.actors) {
		a.killed = true
		s.step(a)
	}
}

type simStore struct{ Snapshots }

func (simStore) Readable(context.Context, string, string) error               { return nil }
func (simStore) Accepts(context.Context, string) error                        { return nil }
func (simStore) Drop(context.Context, string, string, string, string) error   { return nil }
func (simStore) Exists(context.Context, string, string) (there bool, _ error) { return true, nil }
func (simStore) Reaches(context.Context, *nodev1.SnapshotRef) (bool, error)   { return true, nil }

// simRecords is the way to the store, which may fail before or after it has done its work.
type simRecords struct {
	nodev1.RecordsService
	s     *simulation
	quiet bool
	after func() // a commit was made; nil: the caller does not ask
}

// changed notes which phases follow each other.
func (r simRecords) changed(ctx context.Context, do func() (*nodev1.Record, error)) (*nodev1.Record, error) {
	before, _ := r.s.records.Get(ctx, &nodev1.GetRequest{Vm: vm})
	rec, err := do()
	if err == nil {
		after, _ := r.s.records.Get(ctx, &nodev1.GetRequest{Vm: vm})
		r.s.phases(ctx, before.GetOperation(), after.GetOperation())
	}
	return rec, err
}

// stumbles are reasons, of moves, that one controller gives for what the other one did: both did the
// same, and neither is wrong.
var stumbles = []string{"its receipt is", "its digest is", "it is in PHASE_"}

func (r simRecords) stumbled(req *nodev1.AdvanceRequest) {
	for _, text := range stumbles {
		if strings.HasPrefix(req.GetOperation(), "op") && req.GetPhase() == nodev1.Phase_PHASE_ABORTING &&
			strings.Contains(req.GetReason(), text) {
			r.s.violated("a move is given up because of the other controller: %s", req.GetReason())
		}
	}
}

func (s *simulation) phases(ctx context.Context, before, after *nodev1.Operation) {
	to := after.GetPhase()
	if after == nil && before != nil {
		closed, err := s.records.Operation(ctx, &nodev1.OperationRequest{Id: before.GetId()})
		if err != nil {
			panic(err)
		}
		to = closed.GetOperation().GetPhase()
	}
	if before.GetPhase() != to {
		from, to := modelPhase(before.GetPhase()), modelPhase(to)
		if from == "aborting" && to == "preparing" { // the next attempt
			s.edges["phase idle preparing"], to = true, "idle"
		}
		if from != to {
			s.edges["phase "+from+" "+to] = true
		}
		s.phase = to
		s.ranBefore(before, to)
		s.trace = append(s.trace, fmt.Sprintf("%s: %s", before.GetId(), to))
	}
}
