package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A source that dies between a durable capture and the commit has not lost the VM: it is restored from that
// capture, whose operation is never finished.
func TestSourceGoneBetweenCaptureAndCommit(t *testing.T) {
	w := newWorld(t)
	w.hangs("Prepare", true)
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
	if _, err := c.Cancel(t.Context(), "m", "its source is gone"); err != nil {
		t.Fatal(err)
	}
	w.until("the move is given up", func() bool {
		return w.record().GetOperation().GetPhase() == nodev1.Phase_PHASE_ABORTING
	})
	if _, err := w.start("n2").Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, LostNode: "n1", Operation: "w"}); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("w"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || op.GetDigest() != captured {
		t.Fatalf("%v, captured was %s", op, captured)
	}
	w.check("w")
}

// reconcile is one round at a node that has the VM.
func (w *world) reconcile(e *Engine) {
	w.t.Helper()
	if err := e.Reconcile(w.t.Context(), at(true)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) stateAt(node string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state[node]
}

// lostLive is a VM that a live move from n1 has lost at n2.
func lostLive(t *testing.T) *world {
	t.Helper()
	w := liveWorld(t)
	w.loses = true
	if err := w.moveLive(w.start("c"), "m"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("m"); op.GetPhase() != nodev1.Phase_PHASE_LOST_AT_DEST {
		t.Fatalf("%v", op)
	}
	return w
}

// The source of a live move that lost the VM holds the only good copy (I3): it keeps that, and no node boots the VM
// fresh. The VM runs again once a person decides that, under a new generation (I2).
func TestSourceHasTheVMBack(t *testing.T) {
	w := lostLive(t)
	n1 := w.start("n1")
	n1.opts.Grace = time.Nanosecond
	for range 3 {
		w.reconcile(n1)
	}
	rec := w.record()
	if w.stateAt("n1") != stopped || !record.IsLost(rec) || !strings.Contains(record.LostText(rec), "--from-source") {
		t.Fatalf("source %q; %s", w.stateAt("n1"), record.LostText(rec))
	}
	if _, err := w.records.Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "n2",
		Generation: rec.GetGeneration()}); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("booted fresh: %v", err)
	}
	order := &nodev1.ReclaimRequest{Vm: vm, Operation: "m", Generation: rec.GetGeneration(), LostNode: "n2"}
	for range 2 { // said twice
		back, err := w.records.Reclaim(t.Context(), order)
		if err != nil || back.GetOwner().GetNode() != "n1" || back.GetGeneration() != rec.GetGeneration()+1 {
			t.Fatalf("%v, %v", back, err)
		}
	}
	for range 2 {
		w.reconcile(n1)
	}
	if w.stateAt("n1") != runs || w.count("Revert") != 1 || record.IsLost(w.record()) {
		t.Errorf("source %q after %v", w.stateAt("n1"), w.calls())
	}
	w.check("m")
}

// What a source keeps of a lost VM goes when somebody gives the VM up.
func TestLostIsGivenUp(t *testing.T) {
	w := lostLive(t)
	if _, err := w.records.Remove(t.Context(), &nodev1.RemoveRequest{Vm: vm}); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("given up without force: %v", err)
	}
	if _, err := w.records.Remove(t.Context(), &nodev1.RemoveRequest{Vm: vm, Force: true}); err != nil {
		t.Fatal(err)
	}
	n1 := w.start("n1")
	n1.opts.Grace = 20 * time.Millisecond
	w.reconcile(n1)
	if w.stateAt("n1") != stopped {
		t.Fatal("freed at first sight: the record may come back")
	}
	w.mu.Lock()
	w.blobs["elsewhere"] = true // what I3 counts: this VM was given up
	w.mu.Unlock()
	w.until("the source is freed", func() bool { w.reconcile(n1); return w.stateAt("n1") == gone })
	if w.count("CleanDeparted") != 1 {
		t.Errorf("containerd's part stays: %v", w.calls())
	}
}

// The records forget operations; a source that was away for longer than they remember finds
// out by owner and generation that its VM is elsewhere.
func TestSourceOfAForgottenMove(t *testing.T) {
	w := liveWorld(t)
	c := w.start("c")
	c.opts.Patience, c.opts.Step = time.Millisecond, time.Millisecond
	w.hangs("Run", true)
	if err := w.moveLive(c, "m"); err != nil {
		t.Fatal(err)
	}
	w.called("Run", 1)
	w.silence("n1", true)
	w.mu.Lock()
	w.hang = nil
	w.mu.Unlock()
	if op := w.settle("m"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || w.stateAt("n1") != stopped {
		t.Fatalf("%v; source is %s", op, w.stateAt("n1"))
	}
	for i := range 40 {
		rec := w.record()
		op := &nodev1.Operation{Id: fmt.Sprintf("c%d", i), Kind: nodev1.Kind_KIND_CHECKPOINT, Attempt: 1, Source: "n2",
			Generation: rec.GetGeneration()}
		ref := &nodev1.FinishRequest{Vm: vm, Operation: op.Id, Attempt: 1, Generation: op.Generation,
			Phase: nodev1.Phase_PHASE_FAILED}
		_, err := w.records.Open(t.Context(), &nodev1.OpenRequest{Vm: vm, Operation: op})
		if err == nil {
			_, err = w.records.Advance(t.Context(), &nodev1.AdvanceRequest{Vm: vm, Operation: op.Id, Attempt: 1,
				Generation: op.Generation, Phase: nodev1.Phase_PHASE_ABORTING})
		}
		if err == nil {
			_, err = w.records.Finish(t.Context(), ref)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.records.Operation(t.Context(), &nodev1.OperationRequest{Id: "m"}); !errdefs.IsNotFound(err) {
		t.Fatalf("the move is not forgotten: %v", err)
	}
	w.reconcile(w.start("n1"))
	if w.stateAt("n1") != gone || w.stateAt("n2") != runs {
		t.Errorf("source %q, destination %q", w.stateAt("n1"), w.stateAt("n2"))
	}
}

// A node that was called lost and comes back ends what went on without it, says why, and
// ends nothing while it does not know.
func TestNodeThatWasCalledLost(t *testing.T) {
	w := newWorld(t)
	n1 := w.start("n1")
	op := w.take(n1, "cp")
	w.mu.Lock()
	w.state["n1"] = gone // as the rest of the world sees it
	w.mu.Unlock()
	if _, err := w.start("n2").Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, LostNode: "n1", Operation: "w"}); err != nil {
		t.Fatal(err)
	}
	if settled := w.settle("w"); settled.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED ||
		settled.GetDigest() != op.GetDigest() {
		t.Fatalf("%v", settled)
	}
	w.mu.Lock()
	w.state["n1"] = runs // and it is back, with two runners that cannot be kept apart
	w.mu.Unlock()
	n1.Records = unread{n1.Records}
	if err := n1.Reconcile(t.Context(), at(true)); !errdefs.IsUnavailable(err) || w.stateAt("n1") != runs {
		t.Fatalf("ended without the record's word: %v", err)
	}
	var told []Event
	n1.Records, n1.Events = w.records, sink(func(ev Event) { told = append(told, ev) })
	w.reconcile(n1)
	if w.stateAt("n1") != gone || w.stateAt("n2") != runs {
		t.Errorf("n1 %q, n2 %q", w.stateAt("n1"), w.stateAt("n2"))
	}
	if len(told) != 1 || told[0].Type != Superseded || !strings.Contains(told[0].Reason, "node n2 owns it") ||
		!strings.Contains(w.ended, "node n2") {
		t.Errorf("told %v, the shim %q", told, w.ended)
	}
	before := len(w.calls())
	w.reconcile(w.start("n2"))
	if slices.Contains(w.calls()[before:], "EndSuperseded") || w.stateAt("n2") != runs {
		t.Error("the owner ended its own")
	}
}

// unread are records that list, and answer nothing else.
type unread struct{ nodev1.RecordsService }

func (unread) Get(context.Context, *nodev1.GetRequest) (*nodev1.Record, error) {
	return nil, errdefs.ErrUnavailable
}

type sink func(Event)

func (s sink) Event(_ context.Context, ev Event) { s(ev) }
