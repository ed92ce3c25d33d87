package engine

import (
	"strings"
	"testing"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// TestWakeOfPodThatWasGivenUp: a sandbox that was given up never runs the pod, and no other one takes up the same
// attempt. So the wake ends at once, and the pod sleeps on. Without that it would wait until its time is over.
func TestWakeOfPodThatWasGivenUp(t *testing.T) {
	w := asleep(t)
	w.pod, w.awaits = true, 2
	if err := w.wake(w.start("n2"), "w"); err != nil {
		t.Fatal(err)
	}
	op := w.settle("w")
	if op.GetPhase() != nodev1.Phase_PHASE_FAILED || !strings.Contains(op.GetReason(), "order the wake again") {
		t.Errorf("%v", op)
	}
	if owner := w.record().GetOwner(); owner.GetDigest() == "" || w.awaits != -1 {
		t.Errorf("owner %v, %d waits are left", owner, w.awaits)
	}
}
