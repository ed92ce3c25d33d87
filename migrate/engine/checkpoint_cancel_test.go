package engine

import (
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A checkpoint that is called off leaves the VM as it is, and no snapshot. Once it is listed, it is too late.
func TestCancelOfACheckpoint(t *testing.T) {
	w := newWorld(t)
	inside := make(chan struct{})
	w.waitInside = inside
	e := w.start("n1")
	if err := w.checkpoint(e, "c1"); err != nil {
		t.Fatal(err)
	}
	<-inside
	if _, err := e.Cancel(t.Context(), "c1", "its claim was lost"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("c1"); op.GetPhase() != nodev1.Phase_PHASE_ABORTED || !op.GetCancelled() {
		t.Fatalf("operation %v", op)
	}
	if rec := w.record(); len(rec.GetSnapshots()) != 0 || rec.GetOwner().GetNode() != "n1" || w.state["n1"] != runs {
		t.Errorf("record %v, the VM is %s", rec, w.state["n1"])
	}
	w.take(e, "c2")
	if _, err := e.Cancel(t.Context(), "c2", "too late"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("after it is listed: %v", err)
	}
}
