package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

func (w *world) broke(name string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.always[name] = err
}

// called waits until a call has been made n times.
func (w *world) called(name string, n int) {
	w.t.Helper()
	w.until(name+" is called", func() bool {
		count := 0
		for _, call := range w.calls() {
			if call == name {
				count++
			}
		}
		return count >= n
	})
}

func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("never seen: %s; calls %v", what, w.calls())
		}
	}
}

func (w *world) record() *nodev1.Record {
	w.t.Helper()
	rec, err := w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vm})
	if err != nil {
		w.t.Fatal(err)
	}
	return rec
}

func (w *world) start(node string) *Engine {
	e := w.engine(node)
	w.t.Cleanup(e.Close)
	return e
}

// TestSourceThatCannotStop is: the vote fails and so does the way back. The operation stays open, the snapshot is
// not given up, and the VM neither boots nor wakes.
func TestSourceThatCannotStop(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	w.broke("Vote", errdefs.ErrInternal)
	w.broke("Abort", errdefs.ErrUnavailable)
	if err := w.hibernate(e, "op"); err != nil {
		t.Fatal(err)
	}
	w.called("Abort", 3)
	rec := w.record()
	if rec.GetOperation().GetPhase() != nodev1.Phase_PHASE_ABORTING || rec.GetOwner().GetNode() != "n1" ||
		len(w.dropped) != 0 {
		t.Fatalf("record %v, dropped %v", rec, w.dropped)
	}
	status, err := e.Status(t.Context(), "op")
	if err != nil || status.Settled || !strings.Contains(status.Waiting, "Abort") {
		t.Fatalf("status %v (%v) does not say what it waits for", status, err)
	}
	if err := w.wake(w.start("n2"), "w"); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("wake elsewhere: %v", err)
	}
	if d, err := record.Decide(rec, "n1", record.Intent{}); err == nil {
		t.Fatalf("a Create would %v", d)
	}
	w.broke("Abort", nil)
	if op := w.settle("op"); op.Phase != nodev1.Phase_PHASE_FAILED || !strings.Contains(op.Reason, "Vote") {
		t.Fatalf("operation %v", op)
	}
	w.check("op")
}

// TestOldSnapshotIsNotRestored is: round two fails in its push; the
// snapshot of round one owns nothing and no wake restores it.
func TestOldSnapshotIsNotRestored(t *testing.T) {
	w := asleep(t)
	old := w.record().GetOwner().GetDigest()
	n2 := w.start("n2")
	if err := w.wake(n2, "w1"); err != nil {
		t.Fatal(err)
	}
	w.settle("w1")
	w.broke("Capture", errdefs.ErrUnavailable)
	if err := w.hibernate(n2, "h2"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("h2"); op.Phase != nodev1.Phase_PHASE_FAILED {
		t.Fatalf("round two: %v", op)
	}
	w.check("h2")
	for _, force := range []bool{false, true} {
		_, err := w.start("n1").Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, Digest: old, Force: force})
		var held *record.HeldError
		if !errors.As(err, &held) || held.Record.GetOwner().GetNode() != "n2" {
			t.Fatalf("wake of round one (force %v): %v", force, err)
		}
	}
}

// TestForce restores a spent snapshot only by order.
func TestForce(t *testing.T) {
	w := asleep(t)
	first := w.record().GetOwner().GetDigest()
	e := w.start("n1")
	e.opts.Retention.Keep = 2
	for i, id := range []string{"w1", "h1"} {
		if err := []func(*Engine, string) error{w.wake, w.hibernate}[i](e, id); err != nil {
			t.Fatal(err)
		}
		w.settle(id)
	}
	if _, err := e.Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, Digest: first}); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("older snapshot without force: %v", err)
	}
	if _, err := e.Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, Digest: first, Force: true,
		Operation: "w2"}); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("w2"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED || op.Digest != first {
		t.Fatalf("forced: %v", op)
	}
	w.check("w2")
}

// TestCancel ends a capture under way; after the commit it is too late.
func TestCancel(t *testing.T) {
	w := newWorld(t)
	inside := make(chan struct{})
	w.waitInside = inside
	e := w.start("n1")
	if err := w.hibernate(e, "op"); err != nil {
		t.Fatal(err)
	}
	<-inside
	if _, err := e.Cancel(t.Context(), "op", "changed my mind"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("op"); op.Phase != nodev1.Phase_PHASE_ABORTED || op.Reason != "changed my mind" {
		t.Fatalf("operation %v", op)
	}
	w.check("op")
	if err := w.hibernate(e, "op2"); err != nil {
		t.Fatal(err)
	}
	w.settle("op2")
	if _, err := e.Cancel(t.Context(), "op2", "too late"); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("cancel after the commit: %v", err)
	}
}

// TestDeadline fires although the store keeps failing, also over a restart; its error is
// the answer of that step, and no later one runs.
func TestDeadline(t *testing.T) {
	w := asleep(t)
	w.broke("Exists", errdefs.ErrUnavailable)
	e := w.engine("n2")
	e.opts.Operation = 50 * time.Millisecond
	if err := w.wake(e, "op"); err != nil {
		t.Fatal(err)
	}
	op := w.settle("op")
	e.Close()
	if op.Phase != nodev1.Phase_PHASE_FAILED || !strings.Contains(op.Reason, "find snapshot") {
		t.Fatalf("operation %v", op)
	}
	w.check("op")
	if slices.Contains(w.calls(), "Create") {
		t.Fatal("created without a snapshot (R5)")
	}
}

// TestStoreErrorIsRetried is R5: an error is not "not there".
func TestStoreErrorIsRetried(t *testing.T) {
	w := asleep(t)
	w.broke("Exists", errdefs.ErrUnavailable)
	e := w.start("n2")
	if err := w.wake(e, "op"); err != nil {
		t.Fatal(err)
	}
	w.called("Exists", 3)
	w.broke("Exists", nil)
	if op := w.settle("op"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("operation %v", op)
	}
}

// TestSnapshotNotThere is: intent without a snapshot fails, naming the
// digest, and makes nothing.
func TestSnapshotNotThere(t *testing.T) {
	w := asleep(t)
	w.mu.Lock()
	digest := w.record().GetOwner().GetDigest()
	w.blobs = map[string]bool{}
	w.mu.Unlock()
	if err := w.wake(w.start("n2"), "op"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("op"); op.Phase != nodev1.Phase_PHASE_FAILED || !strings.Contains(op.Reason, digest) {
		t.Fatalf("operation %v does not name %s", op, digest)
	}
}

// TestOppositeOrdersWait is, TestSameOrder.
func TestOppositeOrdersWait(t *testing.T) {
	w := asleep(t)
	e := w.start("n2")
	w.broke("Exists", errdefs.ErrUnavailable)
	if err := w.wake(e, "w"); err != nil {
		t.Fatal(err)
	}
	w.called("Exists", 1)
	if err := w.wake(e, "other"); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "operation w ") {
		t.Fatalf("second wake: %v", err)
	}
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = w.hibernate(e, "h") })
	w.called("Exists", 4)
	w.broke("Exists", nil)
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if op := w.settle("h"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("hibernate after the wake: %v", op)
	}
	w.check("h")
}

func TestSameOrder(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	for range 3 {
		if err := w.hibernate(e, "op"); err != nil {
			t.Fatal(err)
		}
	}
	w.settle("op")
	status, err := e.Hibernate(t.Context(), &nodev1.HibernateRequest{Vm: vm, Operation: "op"})
	if err != nil || !status.Settled || w.captures != 1 {
		t.Fatalf("status %v (%v) after %d captures", status, err, w.captures)
	}
	if err := w.wake(e, "op"); !errdefs.IsAlreadyExists(err) {
		t.Fatalf("wake under a hibernate's id: %v", err)
	}
}

func TestNowhereToPutIt(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	e.opts.Repository = func(*nodev1.Record) string { return "" }
	if err := w.hibernate(e, "op"); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("hibernate without a registry: %v", err)
	}
	if w.record().GetOperation() != nil {
		t.Fatal("it is half-run")
	}
}

// TestStoreThatTakesNothing is found out before the VM is paused: with its class).
func TestStoreThatTakesNothing(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	w.broke("Accepts", errdefs.ErrPermissionDenied)
	if err := w.hibernate(e, "op"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("op"); op.Phase != nodev1.Phase_PHASE_FAILED ||
		op.Class != record.Class(errdefs.ErrPermissionDenied) {
		t.Fatalf("operation %v", op)
	}
	if w.captures != 0 || w.state["n1"] != runs {
		t.Fatalf("%d captures, the VM is %s", w.captures, w.state["n1"])
	}
	w.broke("Accepts", nil)
	if err := w.hibernate(e, "again"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("again"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("operation %v", op)
	}
	w.check("again")
}

// afterCommit is a wake whose Start commits and then ends in state with a record.
func afterCommit(t *testing.T, state, nodeRecord string) *nodev1.Operation {
	t.Helper()
	w := asleep(t)
	w.startFails = &machinev1.QueryResponse{State: state, Record: nodeRecord, Ref: &machinev1.Ref{Operation: "op",
		Attempt: 1}}
	if err := w.wake(w.start("n2"), "op"); err != nil {
		t.Fatal(err)
	}
	op := w.settle("op")
	if d := w.record().GetOwner().GetDigest(); (d != "") != (nodeRecord == recordFenced) {
		t.Fatalf("owner %v", w.record().GetOwner())
	}
	return op
}

// TestFencedDestinationReverts: it never ran, so the digest owns the VM again, under a
// new generation, and may be woken again.
func TestFencedDestinationReverts(t *testing.T) {
	if op := afterCommit(t, stateStopped, recordFenced); op.Phase != nodev1.Phase_PHASE_FAILED {
		t.Fatalf("operation %v", op)
	}
}

// TestDestinationThatMayHaveRunIsLost is R9.
func TestDestinationThatMayHaveRunIsLost(t *testing.T) {
	if op := afterCommit(t, stateStopped, recordOwn); op.Phase != nodev1.Phase_PHASE_LOST_AT_DEST {
		t.Fatalf("operation %v", op)
	}
}

// A destination whose shim died after the commit has a successor, which takes the wake to its end: it is waited
// for, and then the wake has succeeded, though containerd has no task.
func TestSuccessorFinishesAWake(t *testing.T) {
	w := asleep(t)
	successor := func(state string) *machinev1.QueryResponse {
		return &machinev1.QueryResponse{State: state, Record: recordOwn, Adopted: true, Ref: &machinev1.Ref{Operation: "op",
			Attempt: 1}}
	}
	w.startFails = successor("starting")
	e := w.start("n2")
	if err := w.wake(e, "op"); err != nil {
		t.Fatal(err)
	}
	waits := func() bool {
		s, err := e.Status(t.Context(), "op")
		return err == nil && strings.Contains(s.String(), "successor")
	}
	for end := time.Now().Add(30 * time.Second); !waits(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the successor is not waited for")
		}
	}
	w.mu.Lock()
	w.startFails = successor(stateRunning)
	w.mu.Unlock()
	if op := w.settle("op"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED || w.record().GetOwner().GetNode() != "n2" {
		t.Fatalf("operation %v, owner %v", op, w.record().GetOwner())
	}
}

// TestErrorsSayWhere is, and pins which classes are tried again.
func TestErrorsSayWhere(t *testing.T) {
	for class, again := range map[error]bool{
		errdefs.ErrUnavailable: true, errdefs.ErrResourceExhausted: true, errdefs.ErrConflict: true,
		context.DeadlineExceeded: true,
		errdefs.ErrNotFound:      false, errdefs.ErrInvalidArgument: false, errdefs.ErrFailedPrecondition: false,
		errdefs.ErrAborted:  false,
		errdefs.ErrDataLoss: false, errdefs.ErrInternal: false, errdefs.ErrPermissionDenied: false,
		errdefs.ErrNotImplemented: false,
	} {
		err := error(&StepError{Step: "capture", VM: vm, Operation: "op", Err: class})
		if !errors.Is(err, class) || record.Transient(err) != again {
			t.Errorf("%v: class lost, or tried again: %v", err, record.Transient(err))
		}
		for _, part := range []string{"capture", "default/web", "op"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%v does not name %s", err, part)
			}
		}
	}
}
