package transition_test

import (
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func placeOn(node, place string, attempt uint32) func(transition.State) (transition.Change, error) {
	return func(s transition.State) (transition.Change, error) {
		return transition.Place(s, &nodev1.PlaceRequest{Vm: vm, Operation: "op", Attempt: attempt, Generation: gen,
			Node: node, Place: place}, now)
	}
}

// placing are the calls about an operation that is placed later.
var placing = []call{
	{"Place n2, p2", placeOn("n2", "p2", 2)},
	{"Place n2, p3", placeOn("n2", "p3", 2)},
	{"Place n3, p2", placeOn("n3", "p2", 2)},
	{"Place n1, p1", placeOn("n1", "p1", 2)},
	{"Place n2, attempt 1", placeOn("n2", "p2", 1)},
	{"Advance Preparing", inside(nodev1.Kind_KIND_MIGRATE, right)[0].do},
	{"Advance Transferring", inside(nodev1.Kind_KIND_MIGRATE, right)[1].do},
	{"Advance Aborting", inside(nodev1.Kind_KIND_MIGRATE, right)[4].do},
	{"Commit", inside(nodev1.Kind_KIND_MIGRATE, right)[6].do},
	{"Retry", func(s transition.State) (transition.Change, error) {
		return transition.Retry(s, &nodev1.RetryRequest{Vm: vm, Operation: "op", Attempt: 2, Generation: gen}, now)
	}},
}

// unplaced are the states of such operations.
func unplaced() (names []string, states map[string]transition.State) {
	of := func(kind nodev1.Kind, phase nodev1.Phase, edit func(*nodev1.Operation)) transition.State {
		s := under(kind, phase)
		s.Named.ByPlace, s.Named.Destination = true, ""
		edit(s.Named)
		if s.Record.Operation != nil {
			s.Record.Operation = proto.CloneOf(s.Named)
		}
		return s
	}
	same := func(*nodev1.Operation) {}
	at := func(op *nodev1.Operation) { op.Destination, op.Place = "n2", "p2" }
	move, wake := nodev1.Kind_KIND_MIGRATE, nodev1.Kind_KIND_WAKE
	rival := of(wake, nodev1.Phase_PHASE_PENDING, same)
	rival.Record.Owner = &nodev1.Owner{Node: "n3"} // which is called lost
	return []string{"wake", "wake, n3 lost", "wake, placed", "move", "move to n3", "move, placed", "move, Preparing",
			"move, called off", "move, turned to n3", "move, committed", "move, settled", "move that named n2"},
		map[string]transition.State{
			"wake": of(wake, nodev1.Phase_PHASE_PENDING, same), "wake, n3 lost": rival,
			"wake, placed": of(wake, nodev1.Phase_PHASE_PENDING, at),
			"move":         of(move, nodev1.Phase_PHASE_PENDING, same),
			"move to n3": of(move, nodev1.Phase_PHASE_PENDING, func(op *nodev1.Operation) {
				op.Wish = "n3"
			}),
			"move, placed":     of(move, nodev1.Phase_PHASE_PENDING, at),
			"move, Preparing":  of(move, nodev1.Phase_PHASE_PREPARING, at),
			"move, called off": of(move, nodev1.Phase_PHASE_ABORTING, same),
			"move, turned to n3": of(move, nodev1.Phase_PHASE_ABORTING, func(op *nodev1.Operation) {
				op.Retarget = "n3"
			}),
			"move, committed":    of(move, nodev1.Phase_PHASE_COMMITTED, at),
			"move, settled":      of(move, nodev1.Phase_PHASE_SUCCEEDED, at),
			"move that named n2": under(move, nodev1.Phase_PHASE_PENDING),
		}
}

// An operation opens without a destination only if it says that it is placed later. The same order may be given again.
// The node that it was placed on may give it too.
func TestOpenUnplaced(t *testing.T) {
	state := func(kind nodev1.Kind) transition.State {
		return transition.State{Record: &nodev1.Record{Vm: vm, Uid: "uid", Version: 3, Generation: gen,
			Owner: ownerBefore(kind), Place: "p1"}}
	}
	wake, move := nodev1.Kind_KIND_WAKE, nodev1.Kind_KIND_MIGRATE
	for name, tt := range map[string]struct {
		kind nodev1.Kind
		says *nodev1.Operation
		ok   bool
	}{
		"wake":               {wake, &nodev1.Operation{ByPlace: true}, true},
		"move":               {move, &nodev1.Operation{ByPlace: true}, true},
		"with a wish":        {move, &nodev1.Operation{ByPlace: true, Wish: "n2"}, true},
		"as before":          {wake, &nodev1.Operation{}, false},
		"move as before":     {move, &nodev1.Operation{}, false},
		"to its source":      {move, &nodev1.Operation{ByPlace: true, Wish: "n1"}, false},
		"a wish alone":       {wake, &nodev1.Operation{Destination: "n2", Wish: "n3"}, false},
		"with both":          {wake, &nodev1.Operation{ByPlace: true, Destination: "n2"}, false},
		"with a place":       {wake, &nodev1.Operation{ByPlace: true, Place: "p"}, false},
		"a place of a named": {wake, &nodev1.Operation{Destination: "n2", Place: "p"}, false},
		"hibernate":          {nodev1.Kind_KIND_HIBERNATE, &nodev1.Operation{ByPlace: true}, false},
	} {
		op := operation(tt.kind, 0)
		op.Digest, op.Destination = "", ""
		proto.Merge(op, tt.says)
		c, err := transition.Open(state(tt.kind), &nodev1.OpenRequest{Vm: vm, Operation: op}, now)
		if tt.ok != (err == nil) || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		known := transition.State{Record: c.Record, Named: c.Record.GetOperation()}
		for what, again := range map[string]func(*nodev1.Operation){
			"again": func(*nodev1.Operation) {}, "at its node": func(op *nodev1.Operation) {
				op.ByPlace, op.Wish, op.Destination = false, "", "n2"
			},
		} {
			placed, err := transition.Place(known, &nodev1.PlaceRequest{Vm: vm, Operation: "op", Attempt: 2, Generation: gen,
				Node: "n2", Place: "p2"}, now)
			if err != nil {
				t.Fatal(err)
			}
			order := proto.CloneOf(op)
			again(order)
			s := transition.State{Record: placed.Record, Named: placed.Record.GetOperation()}
			if got, err := transition.Open(s, &nodev1.OpenRequest{Vm: vm, Operation: order}, now); err != nil ||
				got.Record != placed.Record {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
		if c.Record.GetOperation().GetSourcePlace() != "p1" {
			t.Errorf("%s: %v", name, c.Record.GetOperation())
		}
	}
}

// The record says what the VM is in: from the commit on, until it has another owner. What is given back is where it
// was.
func TestPlaceOfARecord(t *testing.T) {
	_, states := unplaced()
	s := states["move, Preparing"]
	s.Record.Place, s.Record.Operation.SourcePlace, s.Record.Operation.Phase = "p1", "p1", nodev1.Phase_PHASE_SWITCHING
	s.Named = proto.CloneOf(s.Record.Operation)
	receipt := record.Receipt{Operation: "op", Attempt: 2, Generation: gen, Digest: digest, Stopped: true}
	step := func(what, want string, c transition.Change, err error) {
		t.Helper()
		if err != nil || c.Record.GetPlace() != want {
			t.Fatalf("%s: it is in %q, want %q: %v", what, c.Record.GetPlace(), want, err)
		}
		s = transition.State{Record: c.Record, Named: c.Record.GetOperation()}
	}
	c, err := transition.Commit(s, &nodev1.CommitRequest{Vm: vm, Operation: "op", Attempt: 2, Generation: gen,
		Owner: &nodev1.Owner{Node: "n2"}, Receipt: receipt.String()}, now)
	step("commit", "p2", c, err)
	committed := s
	c, err = transition.Advance(s, &nodev1.AdvanceRequest{Vm: vm, Operation: "op", Attempt: 2, Generation: gen,
		Phase: nodev1.Phase_PHASE_REVERTING}, now)
	step("revert", "p1", c, err)
	s = committed
	c, err = transition.Finish(s, &nodev1.FinishRequest{Vm: vm, Operation: "op", Attempt: 2, Generation: gen,
		Phase: nodev1.Phase_PHASE_SUCCEEDED}, now)
	step("settle", "p2", c, err)
	c, err = transition.Own(s, &nodev1.OwnRequest{Vm: vm, Node: "n2", Generation: gen + 1})
	step("boot again", "p2", c, err)
	c, err = transition.EndOwnership(s, &nodev1.DisownRequest{Vm: vm, Node: "n2", Generation: gen + 2})
	step("end", "", c, err)
	c, err = transition.Own(s, &nodev1.OwnRequest{Vm: vm, Node: "n2", Generation: gen + 3})
	step("boot", "", c, err)
}

// The next attempt has its place still to come, on the node that it was turned to.
func TestRetryUnplaced(t *testing.T) {
	_, states := unplaced()
	s := states["move, turned to n3"]
	c, err := transition.Retry(s, &nodev1.RetryRequest{Vm: vm, Operation: "op", Attempt: 2, Generation: gen}, now)
	op := c.Record.GetOperation()
	if err != nil || !record.Unplaced(op) || op.GetWish() != "n3" || op.GetPlace() != "" || op.GetAttempt() != 3 {
		t.Errorf("%v, %v", op, err)
	}
}
