package transition_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// history drives one record with random calls, most of them wrong, and remembers what
// may never happen again.
type history struct {
	rec    *nodev1.Record
	ops    map[string]*nodev1.Operation
	owners map[uint64]string // by generation
	next   int
}

func (h *history) state(id string) transition.State {
	s := transition.State{Record: h.rec, Named: h.ops[id]}
	if h.rec.GetOperation().GetId() == id && id != "" {
		s.Named = h.rec.GetOperation()
	}
	return s
}

// take applies a change and checks it against all that was before.
func (h *history) take(t *rapid.T, change transition.Change, err error) {
	if err != nil {
		return
	}
	before, after := h.rec, change.Record
	if after == nil {
		t.Fatalf("record removed")
	}
	if change.Closed != nil {
		h.ops[change.Closed.GetId()] = change.Closed
	}
	if op := after.GetOperation(); op != nil {
		if old := h.ops[op.GetId()]; old != nil && transition.Settled(old.GetPhase()) {
			t.Fatalf("settled operation %s came back", op.GetId())
		}
		h.ops[op.GetId()] = op
	}
	changed := !proto.Equal(before.GetOwner(), after.GetOwner())
	again := !changed && after.GetOwner().GetNode() != "" && after.GetOperation() == nil // a boot after a boot
	if grown := after.GetGeneration() - before.GetGeneration(); changed && grown != 1 || !changed && grown != 0 &&
		!(again && grown == 1) {
		t.Fatalf("owner %v to %v, generation %d to %d", before.GetOwner(), after.GetOwner(), before.GetGeneration(),
			after.GetGeneration())
	}
	if after.GetOwner().GetNode() != "" && after.GetOwner().GetDigest() != "" {
		t.Fatalf("two owners: %v", after.GetOwner())
	}
	h.kept(t, before, after)
	name := ownerName(after.GetOwner())
	if old, ok := h.owners[after.GetGeneration()]; ok && old != name {
		t.Fatalf("generation %d belonged to %s, now to %s", after.GetGeneration(), old, name)
	}
	h.owners[after.GetGeneration()] = name
	if changed {
		h.lawful(t, before, after)
	}
	if boot := after.GetOperation() == nil && after.GetGeneration() > before.GetGeneration() &&
		after.GetOwner().GetNode() != ""; boot && before.GetLost() != "" {
		t.Fatalf("boot although %s was lost", before.GetLost())
	}
	h.rec = after
}

// kept checks that a pinned snapshot stays, that a name is that of one, and that the tree has no other's nodes.
func (h *history) kept(t *rapid.T, before, after *nodev1.Record) {
	listed, names := map[string]bool{"": true}, map[string]bool{}
	for _, ref := range after.GetSnapshots() {
		listed[ref.GetDigest()] = true
		if n := ref.GetName(); n != "" && names[n] {
			t.Fatalf("two snapshots are called %s", n)
		}
		names[ref.GetName()] = true
	}
	for _, ref := range before.GetSnapshots() {
		if ref.GetPinned() && !listed[ref.GetDigest()] {
			t.Fatalf("pinned snapshot %s is gone", ref.GetDigest())
		}
	}
	for _, ref := range after.GetSnapshots() {
		if !listed[ref.GetParent()] {
			t.Fatalf("snapshot %s has parent %s, which is not listed", ref.GetDigest(), ref.GetParent())
		}
	}
	if !listed[after.GetBase()] {
		t.Fatalf("the VM has gone on from %s, which is not listed", after.GetBase())
	}
	if refs, base := after.GetSnapshots(), after.GetBase(); base != "" && base != refs[len(refs)-1].GetDigest() &&
		(after.GetOwner().GetNode() != "" || after.GetLost() != "") && transition.InUse(after, base) == "" {
		t.Fatalf("the VM goes on from %s, which may be deleted by its age", base)
	}
}

// snapshot draws one that is listed.
func (h *history) snapshot(t *rapid.T) string {
	refs := h.rec.GetSnapshots()
	if len(refs) == 0 {
		return "sha256:none"
	}
	return refs[rapid.IntRange(0, len(refs)-1).Draw(t, "snapshot")].GetDigest()
}

func (h *history) pin(t *rapid.T) {
	name, pinned := rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "name"), rapid.Bool().Draw(t, "pinned")
	c, err := transition.Pin(h.state(""), &nodev1.PinRequest{Vm: vm, Digest: h.snapshot(t), Name: &name, Pinned: &pinned})
	h.take(t, c, err)
}

func (h *history) trim(t *rapid.T) {
	c, err := transition.Trim(h.state(""), &nodev1.TrimRequest{Vm: vm, Digest: h.snapshot(t),
		Ordered: rapid.Bool().Draw(t, "ordered")}, now)
	h.take(t, c, err)
}

// lawful checks the ways in which an owner may change.
func (h *history) lawful(t *rapid.T, before, after *nodev1.Record) {
	op := after.GetOperation()
	switch {
	case op == nil: // Own and Disown
		if (before.GetOwner().GetNode() == "") == (after.GetOwner().GetNode() == "") || before.GetOwner().GetDigest() != "" {
			t.Fatalf("owner %v to %v without an operation", before.GetOwner(), after.GetOwner())
		}
	case op.GetPhase() == nodev1.Phase_PHASE_COMMITTED:
		p := before.GetOperation().GetPhase()
		if p != nodev1.Phase_PHASE_TRANSFERRING && p != nodev1.Phase_PHASE_SWITCHING {
			t.Fatalf("commit from %s", p)
		}
	case op.GetPhase() != nodev1.Phase_PHASE_REVERTING:
		t.Fatalf("owner changed by %s", op.GetPhase())
	}
}

// TestAnyCallsInAnyOrder shows the invariant I2: whatever is called, owners
// change by the rules, generations never repeat and settled operations stay settled.
func TestAnyCallsInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{rec: &nodev1.Record{Vm: vm, Uid: "uid"}, ops: map[string]*nodev1.Operation{},
			owners: map[uint64]string{0: "no owner"}}
		t.Repeat(map[string]func(*rapid.T){
			"own": func(t *rapid.T) {
				c, err := transition.Own(h.state(""), &nodev1.OwnRequest{Vm: vm, Node: node(t), Generation: h.generation(t)})
				h.take(t, c, err)
			},
			"Disown": func(t *rapid.T) {
				c, err := transition.EndOwnership(h.state(""), &nodev1.DisownRequest{Vm: vm, Node: node(t),
					Generation: h.generation(t)})
				h.take(t, c, err)
			},
			"open":    h.open,
			"pin":     h.pin,
			"trim":    h.trim,
			"advance": h.advance,
			"commit":  h.commit,
			"finish": func(t *rapid.T) {
				op := h.pick(t)
				c, err := transition.Finish(h.state(op.GetId()), &nodev1.FinishRequest{Vm: vm, Operation: op.GetId(),
					Attempt: op.GetAttempt(), Generation: op.GetGeneration(), Phase: rapid.SampledFrom(finishes).Draw(t, "phase")},
					now)
				h.take(t, c, err)
			},
		})
	})
}

func node(t *rapid.T) string { return rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node") }

func (h *history) generation(t *rapid.T) uint64 {
	return h.rec.GetGeneration() - min(h.rec.GetGeneration(), rapid.Uint64Range(0, 1).Draw(t, "behind"))
}

// pick draws a known operation, open or closed.
func (h *history) pick(t *rapid.T) *nodev1.Operation {
	if op := h.rec.GetOperation(); op != nil && rapid.IntRange(0, 3).Draw(t, "other") > 0 {
		return op
	}
	ids := slices.Sorted(maps.Keys(h.ops))
	if len(ids) == 0 {
		return nil // an operation that the model does not know
	}
	return h.ops[rapid.SampledFrom(ids).Draw(t, "operation")]
}

func (h *history) open(t *rapid.T) {
	h.next++
	op := &nodev1.Operation{Id: fmt.Sprintf("op%d", h.next), Attempt: 1, Generation: h.generation(t),
		Kind: rapid.SampledFrom([]nodev1.Kind{1, 2, 3}).Draw(t, "kind"), Manual: rapid.Bool().Draw(t, "manual"),
		SnapshotName: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "called")}
	if op.Kind != nodev1.Kind_KIND_WAKE {
		op.Source = node(t)
	}
	if op.Kind != nodev1.Kind_KIND_HIBERNATE {
		op.Destination = node(t)
	}
	req := &nodev1.OpenRequest{Vm: vm, Operation: op}
	if rapid.Bool().Draw(t, "force") && op.Kind == nodev1.Kind_KIND_WAKE {
		op.Digest = "sha256:" + h.pick(t).GetId()
		req.ForceDigest = op.Digest
	}
	c, err := transition.Open(h.state(op.Id), req, now)
	if err == nil && op.Kind == nodev1.Kind_KIND_WAKE && h.rec.GetOwner().GetNode() != "" {
		t.Fatalf("wake of a VM that node %s owns", h.rec.GetOwner().GetNode())
	}
	h.take(t, c, err)
}

func (h *history) advance(t *rapid.T) {
	op := h.pick(t)
	req := &nodev1.AdvanceRequest{Vm: vm, Operation: op.GetId(), Attempt: op.GetAttempt(), Generation: op.GetGeneration(),
		Phase: rapid.SampledFrom(advances).Draw(t, "phase")}
	if op.GetKind() == nodev1.Kind_KIND_HIBERNATE {
		req.Digest = "sha256:" + op.GetId()
	}
	c, err := transition.Advance(h.state(op.GetId()), req, now)
	h.take(t, c, err)
}

func (h *history) commit(t *rapid.T) {
	op := h.pick(t)
	owner := &nodev1.Owner{Node: op.GetDestination()}
	if op.GetKind() == nodev1.Kind_KIND_HIBERNATE {
		owner = &nodev1.Owner{Digest: op.GetDigest()}
	}
	if rapid.IntRange(0, 5).Draw(t, "wrong") == 0 {
		owner = &nodev1.Owner{Node: node(t)}
	}
	receipt := record.Receipt{Operation: op.GetId(), Attempt: op.GetAttempt(), Generation: op.GetGeneration(),
		Digest: op.GetDigest(), Stopped: rapid.Bool().Draw(t, "stopped")}
	c, err := transition.Commit(h.state(op.GetId()), &nodev1.CommitRequest{Vm: vm, Operation: op.GetId(),
		Attempt: op.GetAttempt(), Generation: op.GetGeneration(), Owner: owner, Receipt: receipt.String()}, now)
	// Without this operation's own receipt nothing is complete.
	if err == nil && op.GetKind() != nodev1.Kind_KIND_WAKE && !receipt.Stopped && c.Record != h.rec {
		t.Fatalf("commit of a source that has not voted")
	}
	h.take(t, c, err)
}
