package controller_test

import (
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A controller that remembers how far its store was knows an older copy before any node has spoken. It knows it
// also where the only thing that is newer sleeps in a registry. Restored, the store counts from there on.
func TestControllerKnowsAnOldCopy(t *testing.T) {
	r := newRestored(t)
	compare := func(seen controller.Mark, behind bool) controller.Mark {
		t.Helper()
		now, err := r.whole.Compare(t.Context(), seen)
		if err != nil {
			t.Fatal(err)
		}
		state, err := r.memory.State(t.Context())
		if err != nil || (state.GetBehind() != nil) != behind {
			t.Fatalf("%v, %v", state, err)
		}
		return now
	}
	first := compare(controller.Mark{}, false) // of a build before, or of a first start
	onA := r.boot(web, "a")
	copied := r.memory.Copy()
	if again := compare(first, false); again == first {
		t.Fatal("a change of the store is none")
	}
	r.give(onA, "b")
	seen := compare(first, false)
	if compare(seen, false) != seen {
		t.Error("a question is a change of the store")
	}
	r.memory.PutBack(copied)
	for range 2 {
		if still := compare(seen, true); still != seen {
			t.Errorf("the copy counts: %v", still)
		}
	}
	r.refused(web, "a", "older than it was", "node c has seen revision", "godwit controller restore")
	if _, err := r.whole.Retire(t.Context(), &nodev1.RetireRequest{Node: "b"}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("no word is in the way: %v", err)
	}
	r.restore()
	if now := compare(seen, false); now.Incarnation == 0 {
		t.Errorf("%v", now)
	}

	r.memory.PutBack(copied) // to before the incarnation
	compare(controller.Mark{Incarnation: 1_800_000_000}, true)
}
