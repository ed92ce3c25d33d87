package transition

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const incarnation = 1_800_000_000

var settled = &nodev1.VM{Namespace: "ns", Id: "a"}

// holder of the VM "u" at a node; op is the operation that holds it there.
func holder(node string, generation uint64, phase string, op *nodev1.Operation) Holder {
	return Holder{Node: node, Held: &nodev1.Held{
		Vm: settled, Uid: "u", Generation: generation, Phase: phase, Operation: op.GetId(), Attempt: op.GetAttempt(),
	}}
}

// copyOf is the record of a copy at generation 5.
func copyOf(owner *nodev1.Owner, op *nodev1.Operation) *nodev1.Record {
	rec := &nodev1.Record{Vm: settled, Uid: "u", Owner: owner, Generation: 5, Operation: proto.CloneOf(op)}
	if owner.GetDigest() != "" {
		rec.Repository = "r"
		rec.Snapshots = []*nodev1.SnapshotRef{{Digest: owner.GetDigest(), Repository: "r"}}
	}
	return Lift(rec, incarnation)
}

func settle(t *testing.T, rec *nodev1.Record, retired []string, holders ...Holder) (*nodev1.Record, *nodev1.Operation) {
	t.Helper()
	s := State{Record: rec, Store: &nodev1.StoreState{Incarnation: incarnation, Waiting: true, Retired: retired}}
	c, err := Settle(s, settled, holders, time.Unix(incarnation, 0))
	if err != nil {
		t.Fatal(err)
	}
	return c.Record, c.Closed
}

// What becomes of a record, by what the copy has and what the nodes hold: the owner, with its
// generation (+: lifted), what contradicts itself (!), what is left of it (lost), the operation
// that goes on, or as what it was closed.
func TestSettle(t *testing.T) {
	a, b, sleeps := &nodev1.Owner{Node: "a"}, &nodev1.Owner{Node: "b"}, &nodev1.Owner{Digest: "sha256:d"}
	hibernate := &nodev1.Operation{Id: "h", Vm: settled, Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1, Phase: switching,
		Source: "a", Generation: 5, Digest: "sha256:e", Repository: "r"}
	wake := &nodev1.Operation{Id: "w", Vm: settled, Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Phase: transferring,
		Destination: "b", Generation: 5, Digest: "sha256:d", Repository: "r"}
	woken := proto.CloneOf(wake)
	woken.Phase, woken.Generation = committed, 4
	move := &nodev1.Operation{Id: "m", Vm: settled, Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Phase: committed,
		Source: "a", Destination: "b", Generation: 4, Digest: "stream:x"}
	opened := proto.CloneOf(move)
	opened.Phase, opened.Generation = switching, 5
	released := holder("a", 5, "RELEASED", hibernate)
	released.Digest, released.Repository = "sha256:f", "r"
	foreign := holder("a", 5, "RELEASED", hibernate)
	foreign.Digest, foreign.Repository = "sha256:f", "elsewhere/r"
	slept := copyOf(a, nil)
	slept.Snapshots = []*nodev1.SnapshotRef{{Digest: "sha256:c", Repository: "r"}}
	other := holder("b", 3, "OWN", nil)
	other.Uid = "another"
	for name, c := range map[string]struct {
		rec     *nodev1.Record
		holders []Holder
		retired []string
		want    string
	}{
		"as the copy has it":             {copyOf(a, nil), []Holder{holder("a", 5, "OWN", nil)}, nil, "a 5"},
		"a newer claim of the same node": {copyOf(a, nil), []Holder{holder("a", 7, "OWN", nil)}, nil, "a 7"},
		"it went to b":                   {copyOf(a, nil), []Holder{holder("b", 6, "OWN", nil)}, nil, "b 6"},
		"it went to b, and a has not heard": {copyOf(a, nil), []Holder{holder("a", 5, "PREPARED", move),
			holder("b", 6, "OWN", nil)}, nil, "b 6"},
		"a has voted, and nobody has it": {copyOf(a, nil), []Holder{holder("a", 5, "PREPARED", move)}, nil,
			"none 6+ kept at a"},
		"a has voted, and b is armed": {copyOf(a, nil), []Holder{holder("a", 5, "PREPARED", move),
			holder("b", 5, "READY", move)}, nil, "a 5"},
		"a has voted, and b is fenced": {copyOf(a, nil), []Holder{holder("a", 5, "PREPARED", move),
			holder("b", 5, "FENCED", move)}, nil, "a 5"},
		"a has voted, and b is fenced for another move": {copyOf(a, nil), []Holder{holder("a", 5, "PREPARED", move),
			holder("b", 5, "FENCED", hibernate)}, nil, "none 6+ kept at a"},
		"a has voted, and b is retired": {copyOf(a, nil), []Holder{holder("a", 5, "PREPARED", move)}, []string{"b"},
			"none 6+ kept at a"},
		"a has voted for a hibernate that the copy does not know": {copyOf(a, nil),
			[]Holder{holder("a", 5, "PREPARED", hibernate)}, nil, "none 6+ kept at a"},
		"a has voted, and the move is open": {copyOf(a, opened), []Holder{holder("a", 5, "PREPARED", opened)}, nil,
			"none 6+ kept at a closed PHASE_LOST_AT_DEST"},
		"a has voted, the move is open, and b is armed": {copyOf(a, opened), []Holder{holder("a", 5, "PREPARED", opened),
			holder("b", 5, "READY", opened)}, nil, "a 5 open PHASE_SWITCHING"},
		"made after the copy, and it has voted": {nil, []Holder{holder("a", 2, "PREPARED", move)}, nil,
			"none 3+ kept at a"},
		"it went to b, and a runs it too": {copyOf(a, nil), []Holder{holder("a", 5, "OWN", nil),
			holder("b", 6, "OWN", nil)}, nil, "a 5 ! both say"},
		"a retired, b runs it": {copyOf(a, nil), []Holder{holder("a", 5, "OWN", nil),
			holder("b", 6, "OWN", nil)}, []string{"a"}, "b 6"},
		"b lies and is retired": {copyOf(a, nil), []Holder{holder("a", 5, "OWN", nil),
			holder("b", 6, "OWN", nil)}, []string{"b"}, "a 5"},
		"b claims what was not given": {copyOf(a, nil), []Holder{holder("a", 5, "OWN", nil),
			holder("b", 1<<60, "OWN", nil)}, nil, "a 5"},
		"b runs what the copy knows to be old": {copyOf(a, nil), []Holder{holder("a", 5, "OWN", nil),
			holder("b", 4, "OWN", nil)}, nil, "a 5"},
		"a has it no more":        {copyOf(a, nil), nil, nil, "none 6+ ! had it when the copy"},
		"a is retired":            {copyOf(a, nil), nil, []string{"a"}, "a 5"},
		"a left it in a snapshot": {slept, []Holder{released}, nil, "sha256:f 6+"},
		"a names a repository of its own": {copyOf(a, nil), []Holder{foreign}, nil,
			"none 6+ ! had it when the copy"},
		"it sleeps":               {copyOf(sleeps, nil), nil, nil, "sha256:d 5+"},
		"it slept, and b runs it": {copyOf(sleeps, nil), []Holder{holder("b", 6, "OWN", nil)}, nil, "b 6"},
		"it slept, and b runs what is old": {copyOf(sleeps, nil), []Holder{holder("b", 5, "OWN", nil)}, nil,
			"sha256:d 5+"},
		"it slept, and two run it": {copyOf(sleeps, nil), []Holder{holder("a", 6, "OWN", nil),
			holder("b", 8, "SENDING", nil)}, nil, "sha256:d 5+ ! both say"},
		"it had no owner":                       {copyOf(nil, nil), nil, nil, "none 5+"},
		"it had no owner, and b boots it":       {copyOf(nil, nil), []Holder{holder("b", 6, "OWN", nil)}, nil, "b 6"},
		"another VM of that name":               {copyOf(a, nil), []Holder{other}, nil, "a 5 ! another VM of that name"},
		"another VM of that name, and a has it": {copyOf(a, nil), []Holder{other, holder("a", 5, "OWN", nil)}, nil, "a 5"},
		"made after the copy":                   {nil, []Holder{holder("b", 2, "OWN", nil)}, nil, "b 2"},
		"made after the copy, and gone":         {nil, nil, nil, "none"},
		"made after the copy, and two have it": {nil, []Holder{holder("a", 1, "OWN", nil), holder("b", 2, "OWN", nil)}, nil,
			"none 0 ! both say"},
		"a hibernate goes on": {copyOf(a, hibernate), []Holder{holder("a", 5, "PREPARED", hibernate)}, nil,
			"a 5 open PHASE_SWITCHING"},
		"a hibernate is over": {copyOf(a, hibernate), []Holder{holder("a", 5, "OWN", nil)}, nil,
			"a 5 closed PHASE_FAILED"},
		"a hibernate is over, and b runs it": {copyOf(a, hibernate), []Holder{holder("b", 7, "OWN", nil)}, nil,
			"b 7 closed PHASE_FAILED"},
		"a hibernate is over, and a has it not": {copyOf(a, hibernate), nil, nil,
			"none 6+ ! had it when the copy lost sha256:e closed PHASE_FAILED"},
		"a wake goes on": {copyOf(sleeps, wake), []Holder{holder("b", 5, "READY", wake)}, nil,
			"sha256:d 5 open PHASE_TRANSFERRING"},
		"a wake is over": {copyOf(sleeps, wake), nil, nil, "sha256:d 5+ closed PHASE_FAILED"},
		"a wake is over, and b runs it": {copyOf(sleeps, wake), []Holder{holder("b", 6, "OWN", nil)}, nil,
			"b 6 closed PHASE_FAILED"},
		"a wake that is committed has run": {copyOf(b, woken), []Holder{holder("b", 5, "OWN", nil)}, nil,
			"b 5 closed PHASE_SUCCEEDED"},
		"a wake that is committed has lost it": {copyOf(b, woken), nil, nil,
			"none 6+ ! had it when the copy closed PHASE_LOST_AT_DEST"},
		"a wake that is committed is about to": {copyOf(b, woken), []Holder{holder("b", 4, "READY", woken)}, nil,
			"b 5 open PHASE_COMMITTED"},
		"a move that is committed, a not heard": {copyOf(b, move), []Holder{holder("a", 4, "PREPARED", move),
			holder("b", 5, "OWN", nil)}, nil, "b 5 open PHASE_COMMITTED"},
		"a move that is committed, a has run it": {copyOf(b, move), []Holder{holder("a", 6, "OWN", nil)}, nil,
			"a 6 closed PHASE_LOST_AT_DEST"},
	} {
		t.Run(name, func(t *testing.T) {
			rec, closed := settle(t, c.rec, c.retired, c.holders...)
			if got := told(rec, closed); !fits(got, c.want) {
				t.Errorf("%s; want %s", got, c.want)
			}
			again, twice := settle(t, rec, c.retired, c.holders...)
			if d := cmp.Diff(rec, again, protocmp.Transform()); d != "" || twice != nil {
				t.Errorf("settled twice: closed %v, %s", twice, d)
			}
		})
	}
}

// TestAnotherVMOfThatName: what the record says to do about it helps. The record is held until the nodes have been
// asked once more, and can be ended then.
func TestAnotherVMOfThatName(t *testing.T) {
	other := holder("b", 3, "OWN", nil)
	other.Uid = "another"
	rec, _ := settle(t, copyOf(&nodev1.Owner{Node: "a"}, nil), nil, other)
	if text := record.LostText(rec); !strings.Contains(text, "end it there, then order godwit controller restore "+
		"once more") {
		t.Errorf("the record says %q", text)
	}
	remove := &nodev1.RemoveRequest{Vm: settled, Uid: rec.GetUid(), Force: true}
	if _, err := Remove(State{Record: rec}, remove, time.Time{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("remove: %v, want failed precondition", err)
	}
	rec, _ = settle(t, rec, nil)
	if _, err := Remove(State{Record: rec}, remove, time.Time{}); err != nil {
		t.Errorf("remove, after b has ended it: %v", err)
	}
}

// fits reports whether got has each part of want, of which text follows "!".
func fits(got, want string) bool {
	plain, text, _ := strings.Cut(want, " ! ")
	for _, end := range []string{" lost ", " closed "} {
		if i := strings.Index(text, end); i >= 0 {
			plain, text = plain+text[i:], text[:i]
		}
	}
	before, why, _ := strings.Cut(got, " ! ")
	return before == plain && strings.Contains(why, text) && (text == "") == (why == "")
}

func told(rec *nodev1.Record, closed *nodev1.Operation) string {
	if rec == nil {
		return "none"
	}
	owner, generation := rec.GetOwner().GetNode()+rec.GetOwner().GetDigest(), fmt.Sprint(rec.GetGeneration())
	if owner == "" {
		owner = "none"
	}
	if floor := record.Floor(incarnation); rec.GetGeneration() >= floor {
		generation = fmt.Sprint(rec.GetGeneration()-floor) + "+"
	}
	text := owner + " " + generation
	if rec.GetLost() != "" {
		text += " lost " + rec.GetLost()
	}
	if k := record.KeptOf(rec); k != nil {
		text += " kept at " + k.GetNode()
	}
	if op := rec.GetOperation(); op != nil {
		text += " open " + op.GetPhase().String()
	}
	if closed != nil {
		text += " closed " + closed.GetPhase().String()
	}
	if rec.GetConflict() != "" {
		text += " ! " + rec.GetConflict()
	}
	return text
}

// A record that a build before has made under a name that is none now is settled like others: it holds nothing up.
func TestSettleUnderAnOldName(t *testing.T) {
	old := &nodev1.VM{Namespace: "ns", Id: "../x"}
	rec := Lift(&nodev1.Record{Vm: old, Uid: "u", Owner: &nodev1.Owner{Digest: "sha256:d"}, Generation: 5}, incarnation)
	s := State{Record: rec, Store: &nodev1.StoreState{Incarnation: incarnation}}
	if c, err := Settle(s, old, nil, time.Unix(incarnation, 0)); err != nil ||
		c.Record.GetOwner().GetDigest() != "sha256:d" {
		t.Errorf("%v, %v", c.Record, err)
	}
}

// Only a node becomes a VM's owner that says that it has it under a generation above the copy's, or has it by the
// copy. Of two that say so, none does unless the other has voted. The owner's next claim is above all that was
// reported. A second look changes nothing.
func TestSettleAnything(t *testing.T) {
	phases := []string{"OWN", "SENDING", "PREPARED", "RELEASED", "INCOMING", "READY", "FENCED", "nonsense"}
	owners := []*nodev1.Owner{nil, {Node: "a"}, {Node: "b"}, {Digest: "sha256:d"}}
	rng := rand.New(rand.NewPCG(21, 3))
	for n := range 20000 {
		rec := copyOf(owners[rng.IntN(len(owners))], nil)
		var holders []Holder
		for _, node := range []string{"a", "b", "c"}[:rng.IntN(4)] {
			h := holder(node, uint64(3+rng.IntN(6)), phases[rng.IntN(len(phases))], nil)
			if rng.IntN(10) == 0 {
				h.Generation = rng.Uint64()
			}
			if rng.IntN(10) == 0 {
				h.Uid = "another"
			}
			holders = append(holders, h)
		}
		got, _ := settle(t, rec, nil, holders...)
		if again, _ := settle(t, got, nil, holders...); !proto.Equal(got, again) {
			t.Fatalf("history %d: settled twice: %v, %v", n, got, again)
		}
		if got.GetConflict() != "" {
			continue
		}
		runs := 0
		for _, h := range holders {
			if h.GetUid() != "u" || h.GetGeneration() >= record.Floor(incarnation) {
				continue
			}
			if h.Has() && h.GetPhase() != "PREPARED" && h.GetGeneration() >= 5 &&
				(h.GetGeneration() > 5 || h.Node == rec.GetOwner().GetNode()) {
				runs++
			}
			if next := record.After(got.GetGeneration(), incarnation); next <= h.GetGeneration() {
				t.Fatalf("history %d: the next generation is %d, %s reported %d", n, next, h.Node, h.GetGeneration())
			}
			if h.Node == got.GetOwner().GetNode() && !proto.Equal(got.GetOwner(), rec.GetOwner()) &&
				(!h.Has() || h.GetGeneration() <= 5) {
				t.Fatalf("history %d: %v became the owner by %v", n, got.GetOwner(), h)
			}
		}
		if runs > 1 {
			t.Fatalf("history %d: %d run it, and it is %v's", n, runs, got.GetOwner())
		}
	}
}

// After a store was settled the home of a VM is the node that has it, or that says it had it last: that
// node decides about what sleeps, and no longer the one that the copy names.
func TestSettleSaysWhoseHomeItIs(t *testing.T) {
	a := &nodev1.Owner{Node: "a"}
	op := &nodev1.Operation{Id: "h", Attempt: 1}
	released := holder("a", 5, "RELEASED", op)
	released.Digest, released.Repository = "sha256:e", "r"
	slept := copyOf(a, nil)
	slept.Snapshots = []*nodev1.SnapshotRef{{Digest: "sha256:d", Repository: "r"}}
	for name, c := range map[string]struct {
		rec     *nodev1.Record
		holders []Holder
		want    string
	}{
		"another node has it":       {copyOf(a, nil), []Holder{holder("b", 6, "OWN", nil)}, "b"},
		"no record":                 {nil, []Holder{holder("b", 6, "OWN", nil)}, "b"},
		"its node had it":           {copyOf(a, nil), nil, "a"},
		"it sleeps since":           {slept, []Holder{released}, "a"},
		"as the copy says":          {copyOf(a, nil), []Holder{holder("a", 5, "OWN", nil)}, "a"},
		"no owner, and none before": {copyOf(&nodev1.Owner{Digest: "sha256:d"}, nil), nil, "old"},
	} {
		if c.rec != nil {
			c.rec.Home = "old"
		}
		if rec, _ := settle(t, c.rec, nil, c.holders...); rec.GetHome() != c.want {
			t.Errorf("%s: home %q, want %q: %v", name, rec.GetHome(), c.want, rec)
		}
	}
}

// The node that has the VM in the copy goes on under the copy's generation: what it has stored since, and what the VM
// may sleep in by now, is no leftover. The node has no journal of a VM that sleeps.
func TestAHibernateSinceTheCopyIsNoLeftover(t *testing.T) {
	rec, _ := settle(t, copyOf(&nodev1.Owner{Node: "a"}, nil), nil)
	if !record.IsLost(rec) || !record.Unknown(rec, 5) {
		t.Errorf("the copy knows of all snapshots of generation 5: %v", rec)
	}
}

// What is left of a VM that its node has no more is the snapshot from which it ran. It had gone back to that one.
func TestAbsentAfterARollback(t *testing.T) {
	rec := copyOf(&nodev1.Owner{Node: "a"}, nil)
	rec.Snapshots = []*nodev1.SnapshotRef{{Digest: "sha256:d1"}, {Digest: "sha256:d2", Parent: "sha256:d1"}}
	rec.Spent, rec.Base = []string{"sha256:d1"}, "sha256:d1"
	if rec, _ = settle(t, rec, nil); rec.GetLost() != "sha256:d1" {
		t.Errorf("%q is left of it", rec.GetLost())
	}
}

// A record that is made of a report is its node's, as one that the node has made itself.
func TestARecordMadeOfAReportHasAMaker(t *testing.T) {
	for _, phase := range []string{"OWN", "PREPARED"} {
		if rec, _ := settle(t, nil, nil, holder("b", 5, phase, nil)); rec.GetMadeBy() != "b" {
			t.Errorf("%s: %v", phase, rec)
		}
	}
	if rec, _ := settle(t, nil, nil, holder("b", 5, "OWN", nil), holder("c", 6, "OWN", nil)); rec.GetMadeBy() != "c" {
		t.Errorf("two nodes: %v", rec)
	}
}
