package engine

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Bounds of the moves below, on a clock of their own. That of a step is the longest: a step before
// the commit that had it would be seen.
const (
	boundOperation = 3 * time.Second
	boundAbort     = time.Second
	boundStep      = 5 * time.Second
)

// bounded plays on a clock that goes on whenever everybody waits.
func bounded(t *testing.T, play func(*testing.T, *world, *Engine)) {
	synctest.Test(t, func(t *testing.T) {
		w := liveWorld(t)
		e := w.engine("c")
		e.opts.Operation, e.opts.Abort, e.opts.Step = boundOperation, boundAbort, boundStep
		t.Cleanup(e.Close)
		play(t, w, e)
	})
}

// Whatever stalls before the commit of a move, the operation's deadline ends it: the VM runs at
// its source under its generation, nothing is left at the destination, and the reason names the step.
// A move that waits for its place has no deadline, as nothing of its VM is held.
func TestStallBeforeTheCommit(t *testing.T) {
	for _, c := range []struct{ mode, call, step string }{
		{"live", "Offer", "check"}, {"live", "Check", "check"}, {"cold", "Accepts", "check"},
		{"live", "Prepare", "transfer"}, {"live", "Send", "transfer"}, {"cold", "Capture", "transfer"},
		{"cold", "Prepare", "transfer"},
		{"live", "Vote", "switch"}, {"live", "Commit", "switch"}, {"cold", "Vote", "switch"}, {"cold", "Commit", "switch"},
	} {
		t.Run(c.mode+" "+c.call, func(t *testing.T) {
			bounded(t, func(t *testing.T, w *world, e *Engine) {
				generation, begun := w.record().GetGeneration(), time.Now()
				w.hangs(c.call, true)
				if err := w.moveTo(e, "m", "n2", c.mode); err != nil {
					t.Fatal(err)
				}
				op := w.settle("m")
				w.check("m")
				if took := time.Since(begun); took < boundOperation || took > boundOperation+boundAbort {
					t.Errorf("it took %v", took)
				}
				if op.GetPhase() != nodev1.Phase_PHASE_FAILED || !strings.HasPrefix(op.GetReason(), c.step+" VM default/web") ||
					!strings.Contains(op.GetReason(), "deadline") {
					t.Errorf("%s: %q", op.GetPhase(), op.GetReason())
				}
				if rec := w.record(); rec.GetOwner().GetNode() != "n1" || rec.GetGeneration() != generation {
					t.Errorf("%v has it at generation %d, it was at %d", rec.GetOwner(), rec.GetGeneration(), generation)
				}
			})
		})
	}
}

// After the commit, and in a rollback, a step that stalls is tried again for ever, each try within its bound.
// Meanwhile the status names the step, and the VM never runs where it must not. After the step run the VM runs at
// the destination. After a revert or a rollback it runs at its source.
func TestStallAfterTheCommit(t *testing.T) {
	for _, c := range []struct {
		call, step string
		bound      time.Duration
		before     func(*world)
		at, late   string // who runs it: while it stalls, and in the end
	}{
		{"Run", "run", boundStep, nil, "", "n2"},
		{"Release", "release", boundStep, nil, "n2", "n2"},
		{"Revert", "revert", boundStep, func(w *world) { w.fences = true }, "", "n1"},
		{"Abort", "give back", boundAbort, func(w *world) { w.broke("Send", errdefs.ErrAborted) }, "n1", "n1"},
		{"Discard", "give back", boundAbort, func(w *world) { w.broke("Send", errdefs.ErrAborted) }, "n1", "n1"},
	} {
		t.Run(c.call, func(t *testing.T) {
			bounded(t, func(t *testing.T, w *world, e *Engine) {
				if c.before != nil {
					c.before(w)
				}
				w.hangs(c.call, true)
				if err := w.moveTo(e, "m", "n2", "live"); err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				w.called(c.call, 3)
				if took := time.Since(begun); took < 2*c.bound || took > 3*c.bound {
					t.Errorf("two tries took %v", took)
				}
				w.stands(e, c.step, c.at)
				w.hangs(c.call, false)
				op := w.settle("m")
				w.check("m")
				if owner := w.record().GetOwner().GetNode(); owner != c.late ||
					(op.GetPhase() == nodev1.Phase_PHASE_SUCCEEDED) != (c.late == "n2") {
					t.Errorf("%s: %q; node %s has it", op.GetPhase(), op.GetReason(), owner)
				}
			})
		})
	}
}

// stands wants the status of move m to name the step that stalls, and the VM to run there alone.
func (w *world) stands(e *Engine, step, at string) {
	w.t.Helper()
	status, err := e.Status(w.t.Context(), "m")
	if err != nil || status.GetSettled() || status.GetStep() != step ||
		!strings.Contains(status.GetWaiting(), step+" VM default/web") {
		w.t.Errorf("step %q waits for %q, %v; want %q", status.GetStep(), status.GetWaiting(), err, step)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, state := range w.state {
		if (state == runs) != (node == at) {
			w.t.Errorf("while %q stalls node %s has it %q, want it to run at %q", step, node, state, at)
		}
	}
}
