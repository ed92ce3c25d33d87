package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// TestSourceGoneAfterTheCommit: a hibernate whose source never answers again does not
// hold its VM for ever: it wakes elsewhere, and the source, when it is back, releases
// what it still has and nothing else.
func TestSourceGoneAfterTheCommit(t *testing.T) {
	w := newWorld(t)
	w.broke("Release", errdefs.ErrUnavailable)
	source := w.engine("n1")
	if err := w.hibernate(source, "h"); err != nil {
		t.Fatal(err)
	}
	w.called("Release", 2)
	source.Close() // the node is gone
	if err := w.wake(w.start("n2"), "w"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("w"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("wake elsewhere: %v", op)
	}
	if op := w.settle("h"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || !op.GetCleanupPending() {
		t.Fatalf("hibernate: %v", op)
	}
	w.broke("Release", nil)
	w.broke("CleanDeparted", errdefs.ErrUnavailable) // once more, after a failure
	back := w.start("n1")
	reconcile := func() error { return back.Reconcile(t.Context(), at(true)) }
	for range 2 {
		if err := reconcile(); !errdefs.IsUnavailable(err) {
			t.Fatalf("it is not said what waits: %v", err)
		}
	}
	w.broke("CleanDeparted", nil)
	if err := reconcile(); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	state, other := w.state["n1"], w.state["n2"]
	w.mu.Unlock()
	if state != gone || other != runs {
		t.Fatalf("source %q, destination %q", state, other)
	}
	before := len(w.calls())
	if err := reconcile(); err != nil {
		t.Fatal(err)
	}
	if again := w.calls()[before:]; slices.Contains(again, "Release") || slices.Contains(again, "CleanDeparted") {
		t.Fatalf("released once more: %v", again)
	}
}

// TestSourceReleasesWhatAWakeElsewhereOvertook: the source's engine, alive all the time,
// finds its operation closed and ends what it has here.
func TestSourceReleasesWhatAWakeElsewhereOvertook(t *testing.T) {
	w := newWorld(t)
	w.broke("Release", errdefs.ErrUnavailable)
	source := w.start("n1")
	if err := w.hibernate(source, "h"); err != nil {
		t.Fatal(err)
	}
	w.called("Release", 2)
	if err := w.wake(w.start("n2"), "w"); err != nil {
		t.Fatal(err)
	}
	w.settle("w")
	w.broke("Release", nil)
	w.until("the source is released", func() bool { return source.running("h") == nil })
	if calls := w.calls(); !slices.Contains(calls, "CleanDeparted") {
		t.Fatalf("nothing cleaned up: %v", calls)
	}
	w.check("w")
}

// TestLostIsWokenByForce is: after a wake that lost the VM its snapshot stays. No node boots the VM fresh. A forced
// wake brings it back.
func TestLostIsWokenByForce(t *testing.T) {
	w := asleep(t)
	digest := w.record().GetOwner().GetDigest()
	w.startFails = &machinev1.QueryResponse{State: stateStopped, Record: recordOwn,
		Ref: &machinev1.Ref{Operation: "w", Attempt: 1}}
	n2 := w.start("n2")
	if err := w.wake(n2, "w"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("w"); op.GetPhase() != nodev1.Phase_PHASE_LOST_AT_DEST {
		t.Fatalf("operation %v", op)
	}
	force := &nodev1.WakeRequest{Vm: vm, Digest: digest, Force: true, Operation: "again"}
	if _, err := n2.Wake(t.Context(), force); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("forced while n2 may run it: %v", err)
	}
	rec, err := w.records.Disown(t.Context(), &nodev1.DisownRequest{Vm: vm, Node: "n2",
		Generation: w.record().GetGeneration()})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"n1", "n2"} {
		if d, err := record.Decide(rec, node, record.Intent{}); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), digest) {
			t.Errorf("a Create on %s would %v (%v)", node, d, err)
		}
		if _, err := w.records.Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: node,
			Generation: rec.GetGeneration()}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("own by %s: %v", node, err)
		}
	}
	if _, err := n2.Wake(t.Context(), &nodev1.WakeRequest{Vm: vm}); err == nil || !strings.Contains(err.Error(), digest) {
		t.Errorf("wake without force: %v", err)
	}
	if _, err := w.records.Remove(t.Context(), &nodev1.RemoveRequest{Vm: vm}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("removed without force: %v", err)
	}
	w.mu.Lock()
	w.startFails, w.state["n2"] = nil, gone
	w.mu.Unlock()
	if _, err := n2.Wake(t.Context(), force); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("again"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || op.GetDigest() != digest {
		t.Fatalf("forced: %v", op)
	}
	if rec := w.record(); rec.GetLost() != "" {
		t.Errorf("still lost: %v", rec)
	}
	w.check("again")
}

// addresses wants the network of a VM that runs elsewhere to stay silent here.
func (n *machine) addresses(req *machinev1.ReleaseRequest) {
	for node, state := range n.state {
		if node != n.node && state == runs && !req.GetMoved() {
			n.broken = append(n.broken, "release gives the addresses back of a VM that has them elsewhere")
		}
	}
}
