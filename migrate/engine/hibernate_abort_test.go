package engine

import (
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM that its host cannot let run yet has its record back, and is not given back: the operation
// stays open and asks again until the VM runs, also where the shim is of the build before, which
// answers FailedPrecondition.
func TestAbortOfAVMThatIsBeingGivenBack(t *testing.T) {
	for name, answer := range map[string]error{"this build": errdefs.ErrUnavailable,
		"the build before": errdefs.ErrFailedPrecondition} {
		for kind, begin := range map[string]func(*world) error{
			"hibernation": func(w *world) error { w.broke("Vote", errdefs.ErrAborted); return w.hibernate(w.start("n1"), "op") },
			"cold move":   func(w *world) error { w.broke("Vote", errdefs.ErrAborted); return w.moveCold(w.start("c"), "op") },
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				w := newWorld(t)
				w.thaws, w.thawing = 3, answer
				if err := begin(w); err != nil {
					t.Fatal(err)
				}
				op := w.settle("op")
				if got := w.stateAt("n1"); op.GetPhase() != nodev1.Phase_PHASE_FAILED || got != runs {
					t.Errorf("the operation is %s, and the VM %s", op.GetPhase(), got)
				}
				if n := w.count("Abort"); n != 4 {
					t.Errorf("%d aborts, want 4", n)
				}
				w.check("op")
			})
		}
	}
}
