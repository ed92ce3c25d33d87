package controller_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// After a store was put back and settled, a VM that sleeps goes to a node that says so in its first report. The
// store had not heard of that node. What a node says after its first report takes no VM.
func TestLateWordOfANode(t *testing.T) {
	r := newRestored(t)
	asleep := func(id string) *nodev1.Record {
		rec := &nodev1.Record{Vm: &nodev1.VM{Namespace: "ns", Id: id}, Uid: id, Owner: &nodev1.Owner{Digest: "sha256:" + id},
			Generation: 7}
		if _, err := r.memory.Apply(t.Context(), rec.GetVm(), 0, transition.Change{Record: rec}); err != nil {
			t.Fatal(err)
		}
		return rec
	}
	one, two := asleep("one"), asleep("two")
	says := func(node string, rec *nodev1.Record) {
		t.Helper()
		h := held(rec, "OWN")
		h.Generation++
		r.report(node, h)
	}
	owned := func(rec *nodev1.Record, want *nodev1.Owner) {
		t.Helper()
		if got := r.get(rec.GetVm()).GetOwner(); !proto.Equal(got, want) {
			t.Errorf("VM %s: owner %v, want %v", rec.GetUid(), got, want)
		}
	}
	r.restore()
	for _, node := range r.nodes {
		r.report(node)
	}
	if state := r.settle(); state.GetWaiting() {
		t.Fatal(state)
	}
	says("b", one) // which it did not when all were asked
	owned(one, one.GetOwner())
	says("late", one)
	owned(one, &nodev1.Owner{Node: "late"})
	says("late", two)
	owned(two, two.GetOwner())
	r.restore("late") // an incarnation is begun by everybody's first report
	for _, node := range r.nodes {
		r.report(node)
	}
	r.settle()
	says("b", two)
	owned(two, two.GetOwner())
}
