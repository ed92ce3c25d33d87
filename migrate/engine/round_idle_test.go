package engine

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM without an operation is left alone, wherever it is wanted: rounds that
// repair and an order to where it runs already ask no store, and no shim to do anything.
func TestNothingToDo(t *testing.T) {
	w := liveWorld(t)
	for _, call := range []string{"Accepts", "Exists", "Drop", "Leftovers", "Collect"} {
		w.broke(call, errdefs.ErrUnavailable)
	}
	c, n1 := w.start("c"), w.start("n1")
	n1.opts.Retention.Scans = true
	before := w.record()
	for range 3 {
		for _, e := range []*Engine{c, n1} {
			if err := e.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := e.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.reconcile(n1)
	}
	if err := w.moveTo(c, "m", "n1", "cold"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("moved to where it is: %v", err)
	}
	if effects := w.effects(); len(effects) > 0 || w.stateAt("n1") != runs ||
		w.record().GetVersion() != before.GetVersion() {
		t.Errorf("calls %v, VM is %s, record %v", effects, w.stateAt("n1"), w.record())
	}
}

// Earlier operations may have left a listed snapshot, its tag, or a wake that was refused because the VM runs. Each
// operation that takes the VM makes its own snapshot first all the same.
func TestEachTakesItsOwnSnapshot(t *testing.T) {
	w := asleep(t)
	n1 := w.start("n1")
	seen := []string{w.record().GetOwner().GetDigest()}
	for i, give := range []func(string) error{
		func(id string) error { return w.hibernate(n1, id) },
		func(id string) error { return w.moveCold(w.start("c"), id) },
	} {
		wake := fmt.Sprint("w", i)
		if err := w.wake(n1, wake); err != nil {
			t.Fatal(err)
		}
		w.settle(wake)
		w.tags = append(w.tags, Leftover{Tag: "left", Digest: seen[0], UID: w.record().GetUid()})
		if err := w.wake(n1, "again"); !errdefs.IsFailedPrecondition(err) {
			t.Fatalf("wake of a VM that runs: %v", err)
		}
		from := len(w.calls())
		id := fmt.Sprint("op", i)
		if err := give(id); err != nil {
			t.Fatal(err)
		}
		op, calls := w.settle(id), w.calls()[from:]
		if slices.Contains(seen, op.GetDigest()) || op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
			t.Errorf("%v, snapshots before: %v", op, seen)
		}
		if captured := slices.Index(calls, "Capture"); captured < 0 || captured > slices.Index(calls, "Vote") {
			t.Errorf("calls %v", calls)
		}
		seen = append(seen, op.GetDigest())
		w.check(id)
	}
}

// turnedBack is a cold move that has its snapshot, and is ordered back to its source, which
// does not answer for now.
func turnedBack(t *testing.T) (w *world, c *Engine, captured string) {
	t.Helper()
	w = newWorld(t)
	c = w.engine("c")
	t.Cleanup(c.Close)
	w.hangs("Prepare", true)
	if err := w.moveCold(c, "m"); err != nil {
		t.Fatal(err)
	}
	w.called("Prepare", 1)
	captured = w.record().GetOperation().GetDigest()
	w.broke("Abort", errdefs.ErrUnavailable)
	if err := w.moveTo(c, "m", "n1", "cold"); err != nil {
		t.Fatal(err)
	}
	w.called("Abort", 2)
	return w, c, captured
}

// The source named as destination has its VM back, and until it runs there, the snapshot of
// the attempt stays.
func TestTurnedBackKeepsItsSnapshot(t *testing.T) {
	w, c, captured := turnedBack(t)
	n1 := w.start("n1")
	n1.opts.Retention.Scans = true
	for range 3 {
		if err := n1.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Prune(t.Context(), &nodev1.PruneRequest{Vm: vm}); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	there, dropped := w.blobs[captured], len(w.dropped)
	w.mu.Unlock()
	if !there || dropped > 0 {
		t.Errorf("snapshot there: %v, %d dropped, while the VM is %s", there, dropped, w.stateAt("n1"))
	}
	w.broke("Abort", nil)
	if op := w.settle("m"); op.GetPhase() != nodev1.Phase_PHASE_ABORTED || w.stateAt("n1") != runs {
		t.Errorf("%v, VM is %s", op, w.stateAt("n1"))
	}
	w.check("m")
}

// The controller that gives a VM back to its source dies at any call from there on. One such place is between the
// thaw and what it writes about that: the VM runs at its source, and no state is lost.
func TestTurnedBackAndKilled(t *testing.T) {
	for _, after := range []bool{false, true} {
		for n := 1; ; n++ {
			w, c, captured := turnedBack(t)
			w.mu.Lock()
			w.always, w.log, w.fault = map[string]error{}, nil, fault{call: n, after: after, kill: c.close}
			w.mu.Unlock()
			<-c.idle("m")
			c.Close()
			w.strike(fault{})
			second := w.start("c")
			if err := second.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			op := w.settle("m")
			if op.GetPhase() != nodev1.Phase_PHASE_ABORTED || w.stateAt("n1") != runs || w.captures != 1 || !w.blobs[captured] {
				t.Fatalf("call %d: %v, VM is %s; calls %v", n, op, w.stateAt("n1"), w.calls())
			}
			w.check(fmt.Sprint("call ", n))
			if n > len(w.calls()) {
				break
			}
		}
	}
}

// A destination that is withdrawn when the source is gone strands nothing (R7): after the commit the restore is
// finished. Before it the digest owns the VM: no node boots it fresh, and any other node wakes it.
func TestWithdrawnDestination(t *testing.T) {
	w := newWorld(t)
	c := w.start("c")
	w.broke("Run", errdefs.ErrUnavailable)
	if err := w.moveCold(c, "m"); err != nil {
		t.Fatal(err)
	}
	w.called("Run", 1)
	w.silence("n1", true)
	if _, err := c.Cancel(t.Context(), "m", "not there"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("withdrawn after the commit: %v", err)
	}
	if err := w.moveTo(c, "m", "n3", "cold"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("turned after the commit: %v", err)
	}
	w.broke("Run", nil)
	w.until("it runs at its destination", func() bool { return w.stateAt("n2") == runs })

	w = asleep(t)
	digest := w.record().GetOwner().GetDigest()
	n2 := w.start("n2")
	w.hangs("Create", true)
	if err := w.wake(n2, "w"); err != nil {
		t.Fatal(err)
	}
	w.called("Create", 1)
	if _, err := n2.Cancel(t.Context(), "w", "not there"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("w"); op.GetPhase() != nodev1.Phase_PHASE_ABORTED || w.record().GetOwner().GetDigest() != digest {
		t.Fatalf("%v, record %v", op, w.record())
	}
	rec := w.record()
	if d, err := record.Decide(rec, "n3", record.Intent{}); err != nil || d.Action != record.Restore ||
		d.Digest != digest {
		t.Errorf("a Create would %v, %v", d, err)
	}
	if _, err := w.records.Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "n3",
		Generation: rec.GetGeneration()}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("booted fresh: %v", err)
	}
	w.hangs("Create", false)
	if err := w.wake(w.start("n3"), "w2"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("w2"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || op.GetDigest() != digest {
		t.Errorf("%v", op)
	}
	w.check("w2")
}

// A task, bundle or shim that is missing says nothing of a VM that sleeps, or that an engine
// wakes: its record stays as it is, and so does its
// snapshot, though its task is deleted.
func TestMissingDemotesNoSleeper(t *testing.T) {
	for name, wakes := range map[string]bool{"asleep": false, "waking": true} {
		w := asleep(t)
		n2 := w.start("n2")
		n2.opts.Grace = 1
		if wakes {
			w.hangs("Create", true)
			if err := w.wake(n2, "w"); err != nil {
				t.Fatal(err)
			}
			w.called("Create", 1)
		}
		before := w.record()
		for range 3 {
			for _, e := range []*Engine{n2, w.start("n1")} {
				if err := e.Reconcile(t.Context(), at(false)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, e := range []*Engine{n2, w.start("n1")} {
			e.opts.Retention.Scans = true
			if err := e.Sweep(t.Context()); err != nil || len(w.dropped) > 0 {
				t.Errorf("%s: %v, dropped %v", name, err, w.dropped)
			}
		}
		if after := w.record(); after.GetVersion() != before.GetVersion() || after.GetOwner().GetDigest() == "" {
			t.Errorf("%s: %v", name, after)
		}
		w.hangs("", false)
	}
}

// That a VM is awake is told only while its record says so: of a wake that somebody else has
// ended, or that has another generation by now, nothing is.
func TestNothingIsToldOfAStaleWake(t *testing.T) {
	w := asleep(t)
	w.hangs("Create", true)
	n2 := w.start("n2")
	if err := w.wake(n2, "w"); err != nil {
		t.Fatal(err)
	}
	w.called("Create", 1)
	late := w.record().GetOperation()
	if _, err := n2.Cancel(t.Context(), "w", "asleep again"); err != nil {
		t.Fatal(err)
	}
	w.settle("w")
	<-n2.idle("w")
	var told []Event
	n2.Events = sink(func(ev Event) { told = append(told, ev) })
	late.Phase = nodev1.Phase_PHASE_COMMITTED
	for name, act := range map[string]func(context.Context) error{
		"runs":      func(ctx context.Context) error { return n2.ran(ctx, late) },
		"succeeded": func(ctx context.Context) error { return n2.finish(ctx, late, nodev1.Phase_PHASE_SUCCEEDED, "", false) },
	} {
		if err := act(t.Context()); !errdefs.IsFailedPrecondition(err) || len(told) > 0 {
			t.Errorf("%s: %v, told %v", name, err, told)
		}
	}
	if rec := w.record(); rec.GetOwner().GetDigest() == "" {
		t.Errorf("record %v", rec)
	}
}

// A failed operation leaves a VM that can be ordered again at once, under an operation with a deadline of its own.
// Events tell that the one failed and the other began.
func TestFailedIsNoEnd(t *testing.T) {
	w := liveWorld(t)
	e := w.start("c")
	var told []string
	e.Events = sink(func(ev Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		told = append(told, fmt.Sprint(ev.Operation, " ", ev.Type))
	})
	e.opts.Operation = 20 * time.Millisecond
	w.hangs("Send", true)
	if op := w.move(e, "m1", "n2", "live"); op.GetPhase() != nodev1.Phase_PHASE_FAILED {
		t.Fatalf("%v", op)
	}
	<-e.idle("m1")
	w.hangs("Send", false)
	e.opts.Operation = time.Minute
	if op := w.move(e, "m2", "n2", "live"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("%v", op)
	}
	<-e.idle("m2")
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, want := range []string{"m1 " + string(Opened), "m1 " + string(Failed), "m2 " + string(Opened),
		"m2 " + string(Succeeded)} {
		if !slices.Contains(told, want) {
			t.Errorf("told %q, not %q", told, want)
		}
	}
}
