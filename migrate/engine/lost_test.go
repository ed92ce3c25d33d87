package engine

import (
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A source that dies between a durable capture and the commit has not lost the VM: it is
// restored from that capture, whose operation nobody will finish.
func TestSourceGoneBetweenCaptureAndCommit(t *testing.T) {
	w := newWorld(t)
	w.broke("Prepare", errdefs.ErrUnavailable)
	c := w.start("c")
	if err := w.moveCold(c, "m"); err != nil {
		t.Fatal(err)
	}
	w.called("Prepare", 1)
	w.mu.Lock()
	captured := w.digest
	w.state["n1"] = gone
	w.silent = map[string]bool{"n1": true}
	w.mu.Unlock()
	w.until("the move is given up", func() bool { return w.record().GetOperation().GetPhase() == nodev1.Phase_PHASE_ABORTING })
	if _, err := w.start("n2").Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, LostNode: "n1", Operation: "w"}); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("w"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || op.GetDigest() != captured {
		t.Fatalf("%v, captured was %s", op, captured)
	}
	w.check("w")
}
