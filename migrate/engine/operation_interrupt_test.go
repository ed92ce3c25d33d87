package engine

import (
	"testing"
	"testing/synctest"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// An order may come by another controller than the one that drives the move. It ends the step under way there too,
// not only the steps that would follow (R6).
func TestOrderAtAnotherController(t *testing.T) {
	for name, c := range map[string]struct {
		order func(*world, *Engine) error
		phase nodev1.Phase
		owner string
	}{
		"abort": {func(w *world, e *Engine) error {
			_, err := e.Cancel(w.t.Context(), "m", "no more")
			return err
		}, nodev1.Phase_PHASE_ABORTED, "n1"},
		"turn": {func(w *world, e *Engine) error {
			return w.moveTo(e, "m", "n3", "live")
		}, nodev1.Phase_PHASE_SUCCEEDED, "n3"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := liveWorld(t)
				e, other := w.start("c"), w.start("c")
				w.hangs("Send", true)
				if err := w.moveTo(e, "m", "n2", "live"); err != nil {
					t.Fatal(err)
				}
				w.called("Send", 1)
				w.hangs("Send", false)
				begun := time.Now()
				if err := c.order(w, other); err != nil {
					t.Fatal(err)
				}
				op := w.settle("m")
				w.check("m")
				if op.GetPhase() != c.phase || w.record().GetOwner().GetNode() != c.owner {
					t.Errorf("%v, owner %v", op, w.record().GetOwner())
				}
				if took := time.Since(begun); took > 2*watchInterval { // on a clock of its own
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
