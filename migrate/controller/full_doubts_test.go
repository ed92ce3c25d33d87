package controller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// many makes VMs of a node, or that it had last.
func (r *restored) many(prefix string, n int, node string, owned bool) (all []*nodev1.Record) {
	r.t.Helper()
	for i := range n {
		rec := r.boot(vmOf(fmt.Sprintf("%s%02d", prefix, i)), node)
		if !owned {
			if _, err := r.records.Disown(r.as(node), &nodev1.DisownRequest{Vm: rec.GetVm(), Node: node,
				Generation: rec.GetGeneration()}); err != nil {
				r.t.Fatal(err)
			}
		}
		all = append(all, rec)
	}
	return all
}

func newerOf(all []*nodev1.Record, by uint64) (some []*nodev1.Held) {
	for _, rec := range all {
		h := held(rec, "OWN")
		h.Generation += by
		some = append(some, h)
	}
	return some
}

// honest has node d report a VM without owner that it runs, and wants claims of it refused.
func (r *restored) honest() {
	r.t.Helper()
	rec := r.many("free", 1, "a", false)[0]
	s := r.report("d", newerOf([]*nodev1.Record{rec}, 2)...)
	now := r.get(rec.GetVm())
	_, err := r.records.Own(r.as("a"), &nodev1.OwnRequest{Vm: now.GetVm(), Node: "a", Generation: now.GetGeneration(),
		Uid: now.GetUid()})
	if e, ok := errors.AsType[*transition.DoubtedError](err); !ok || e.Node != "d" {
		r.t.Errorf("claim of a VM that node d runs: %v; %d doubts", err, len(s.GetDoubts()))
	}
}

// A claim that no node can have is no doubt: it fills no list, and its node is named at once.
func TestAbsurdClaimsAreNoDoubts(t *testing.T) {
	r := newRestored(t)
	var told []string
	r.whole.Contradicts = func(node, _ string) { told = append(told, node) }
	all := r.many("vm", 64, "a", false)
	for some := range slices.Chunk(all, 16) {
		if s := r.report("b", newerOf(some, 1<<52)...); len(s.GetDoubts()) > 0 {
			t.Fatalf("%d doubts", len(s.GetDoubts()))
		}
	}
	if !slices.Equal(told, []string{"b"}) {
		t.Errorf("told of %q", told)
	}
	r.honest()
}

// readStates counts how often the state of a store is read.
type readStates struct {
	store.Store
	reads int
}

func (c *readStates) State(ctx context.Context) (*nodev1.StoreState, error) {
	c.reads++
	return c.Store.State(ctx)
}

// A doubt that was refuted asks nothing of any node: heartbeats that come together read the store once.
func TestRefutedDoubtsCostNoReads(t *testing.T) {
	r := newRestored(t)
	onA := r.boot(web, "a")
	r.report("b", newer(onA))
	if s := r.report("a", held(onA, "OWN")); len(s.GetDoubts()) != 1 || !s.GetDoubts()[0].GetRefuted() {
		t.Fatal(s)
	}
	synctest.Test(t, func(t *testing.T) {
		st := &readStates{Store: r.memory}
		whole := controller.NewIncarnations(st, r.memory, "c", func() []string { return r.nodes }, r.now)
		for _, node := range []string{"a", "b", "d"} {
			if _, report, err := whole.Told(t.Context(), node); report || err != nil {
				t.Errorf("node %s: asked %t, %v", node, report, err)
			}
		}
		if st.reads != 1 {
			t.Errorf("the state was read %d times", st.reads)
		}
	})
}

// Doubts that owners have refuted count for their node, and make room for others.
func TestRefutedDoubtsMakeRoom(t *testing.T) {
	r := newRestored(t)
	all := r.many("vm", 80, "a", true)
	for some := range slices.Chunk(all, 16) {
		r.report("b", newerOf(some, 1)...)
		s := r.report("a", newerOf(all, 0)...) // which refutes them
		if n := len(s.GetDoubts()); n > 17 {
			t.Fatalf("node b has %d doubts", n)
		}
		r.report("b")
		r.clock = r.clock.Add(10 * time.Minute)
	}
	r.honest()
	r.report("d")
	r.clock = r.clock.Add(10 * time.Minute)
	if s := r.report("b"); len(s.GetDoubts()) > 0 {
		t.Errorf("what is not said any more stays: %v", s.GetDoubts())
	}
}

// Where the list is full, a sign that the store is old takes the place of a word on which an owner is asked. Of these,
// each node has its share.
func TestAFullListOfDoubts(t *testing.T) {
	r := newRestored(t)
	for n := range 4 { // of VMs that stand still for an operation at their owner
		node := fmt.Sprint("liar", n)
		r.report(node, newerOf(r.many(node, 16, "a", true), 1)...)
	}
	other := r.many("other", 1, "a", true)
	s := r.report("e", newerOf(other, 1)...)
	if len(s.GetDoubts()) != 64 || !slices.ContainsFunc(s.GetDoubts(), func(d *nodev1.Doubt) bool {
		return d.GetNode() == "e"
	}) {
		t.Errorf("node e has no share: %d doubts", len(s.GetDoubts()))
	}
	r.honest()
}
