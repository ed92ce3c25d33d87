package controller_test

import (
	"testing"
	"time"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The controller that orders a restore may have a clock of its own, hours too early or too late. Another controller
// settles the records after the usual delay, no sooner and no later.
func TestSettleDelayIsByTheOwnClock(t *testing.T) {
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		r := newRestored(t)
		rec := r.boot(web, "a")
		orders := controller.NewIncarnations(r.memory, r.memory, "b", func() []string {
			return r.nodes
		}, func() time.Time { return r.clock.Add(ahead) })
		if _, err := orders.Restore(t.Context(), &nodev1.RestoreRequest{}); err != nil {
			t.Fatal(err)
		}
		r.report("a", held(rec, "OWN"))
		r.report("b")
		r.report("c")
		if state, err := r.whole.State(t.Context(), &nodev1.StateRequest{}); err != nil || !state.GetWaiting() {
			t.Errorf("ordered %s ahead: settled at once, though a node may be new", ahead)
		}
		if r.settle().GetWaiting() {
			t.Errorf("ordered %s ahead: not settled after %s", ahead, controller.SettleDelay)
		}
	}
}
