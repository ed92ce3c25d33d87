package controller_test

import (
	"testing"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A store may be put back from a copy. After that a VM that is new boots at its first try, under a generation of
// the new incarnation.
func TestNewVMAfterPutBack(t *testing.T) {
	r := newRestored(t)
	r.boot(web, "a")
	r.restore()
	for _, node := range r.nodes {
		r.report(node, r.all(node)...)
	}
	state := r.settle()
	rec := r.boot(&nodev1.VM{Namespace: "ns", Id: "new"}, "b")
	if floor := record.Floor(state.GetIncarnation()); rec.GetGeneration() <= floor ||
		rec.GetIncarnation() != state.GetIncarnation() {
		t.Errorf("generation %d and incarnation %d, want more than %d and %d", rec.GetGeneration(), rec.GetIncarnation(),
			floor, state.GetIncarnation())
	}
}
