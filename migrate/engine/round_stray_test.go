package engine

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// between are records before whose answer something happens, once.
type between struct {
	nodev1.RecordsService
	happens func()
}

func (b *between) Get(ctx context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	if do := b.happens; do != nil {
		b.happens = nil
		do()
	}
	return b.RecordsService.Get(ctx, req)
}

// waking is a VM whose wake has made its task on n2 and waits to start it.
func waking(t *testing.T) (w *world, driver, round *Engine) {
	t.Helper()
	w = asleep(t)
	w.hangs("Start", true)
	driver, round = w.start("n2"), w.start("n2")
	round.opts.Grace = time.Nanosecond
	if err := w.wake(driver, "w"); err != nil {
		t.Fatal(err)
	}
	w.called("Start", 1)
	return w, driver, round
}

// over settles an open wake, and leaves what it has made.
func (w *world) over(id string) {
	w.t.Helper()
	op := w.record().GetOperation()
	_, err := w.records.Advance(w.t.Context(), &nodev1.AdvanceRequest{Vm: vm, Operation: id, Attempt: op.GetAttempt(),
		Generation: op.GetGeneration(), Phase: nodev1.Phase_PHASE_ABORTING})
	if err == nil {
		_, err = w.records.Finish(w.t.Context(), &nodev1.FinishRequest{Vm: vm, Operation: id, Attempt: op.GetAttempt(),
			Generation: op.GetGeneration(), Phase: nodev1.Phase_PHASE_FAILED})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestRoundMeetsAWake shows that a VM which wakes between the answers of its shim and of its record
// runs on: the round asks the shim once more, and a stale order ends nothing that runs.
func TestRoundMeetsAWake(t *testing.T) {
	w, driver, round := waking(t)
	op := w.record().GetOperation()
	round.Records = &between{round.Records, func() {
		driver.Close()
		w.mu.Lock()
		w.hang = nil
		w.mu.Unlock()
		if err := w.start("n2").Resume(t.Context()); err != nil {
			t.Error(err)
		}
		w.settle("w")
	}}
	w.reconcile(round)
	if w.stateAt("n2") != runs || w.count("Clear") > 0 || w.count("Undo") > 0 || w.count("Abort") > 0 {
		t.Errorf("the VM is %q after %v", w.stateAt("n2"), w.calls())
	}
	stale := Restore{Intent: record.Intent{Operation: op.GetId(), Attempt: op.GetAttempt(), Digest: op.GetDigest()}}
	if err := round.Tasks.Clear(t.Context(), vm, stale); !errdefs.IsFailedPrecondition(err) || w.stateAt("n2") != runs {
		t.Errorf("a stale order: %v; the VM is %q", err, w.stateAt("n2"))
	}
	w.check("w")
}

// TestRoundEndsWhatIsOver shows that what waits on a node for an attempt is ended there once that attempt is over.
// While its operation is open, its driver alone decides.
func TestRoundEndsWhatIsOver(t *testing.T) {
	w, driver, round := waking(t)
	for range 3 {
		w.reconcile(round)
	}
	if w.stateAt("n2") != created {
		t.Fatalf("the VM is %q under an open operation", w.stateAt("n2"))
	}
	driver.Close() // and what it has made is left over
	w.over("w")
	for range 3 {
		w.reconcile(round)
	}
	if w.stateAt("n2") != gone || w.count("Abort") != 1 || w.count("Clear") != 1 || w.count("Undo") > 0 {
		t.Errorf("the VM is %q after %v", w.stateAt("n2"), w.calls())
	}
}

// TestRoundLetsASourceGo shows that a source which stands still, and has not voted, runs again once its operation
// is over. This holds also where the records know nothing of the operation. While it is open, its driver decides.
func TestRoundLetsASourceGo(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"settled": func(w *world) { w.over("h") },
		"unknown": func(w *world) { w.over("h"); w.ref.Operation = "before" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.hangs("Vote", true)
			driver, round := w.start("n1"), w.start("n1")
			if err := w.hibernate(driver, "h"); err != nil {
				t.Fatal(err)
			}
			w.called("Vote", 1)
			w.reconcile(round)
			if w.stateAt("n1") != paused || w.count("Abort") > 0 {
				t.Fatalf("the VM is %q under an open operation", w.stateAt("n1"))
			}
			driver.Close()
			end(w)
			w.reconcile(round)
			if w.stateAt("n1") != runs || w.count("Abort") != 1 {
				t.Errorf("the VM is %q after %v", w.stateAt("n1"), w.calls())
			}
		})
	}
}

// TestRoundCallsAgain shows that what a shim has ended, and containerd still holds, goes in a later round.
func TestRoundCallsAgain(t *testing.T) {
	w, driver, round := waking(t)
	driver.Close()
	w.over("w")
	w.broke("Clear", errdefs.ErrUnavailable)
	for range 2 {
		if err := round.Reconcile(t.Context(), at(true)); !errdefs.IsUnavailable(err) {
			t.Fatal(err)
		}
	}
	w.broke("Clear", nil)
	w.reconcile(round)
	if w.stateAt("n2") != gone || w.count("Abort") != 1 {
		t.Errorf("the VM is %q after %v", w.stateAt("n2"), w.calls())
	}
}

// TestRecordsThatDoNotKnowTheOperation shows that a source which stands still for an operation that
// the records do not know goes on standing still: they may be a copy of before it.
func TestRecordsThatDoNotKnowTheOperation(t *testing.T) {
	w := newWorld(t)
	w.mu.Lock()
	w.state["n1"], w.ref = stopped, &machinev1.Ref{Operation: "since", Attempt: 1, Generation: w.gens["n1"]}
	w.mu.Unlock()
	n1 := w.start("n1")
	n1.opts.Grace = time.Nanosecond
	for range 3 {
		if err := n1.Reconcile(t.Context(), at(true)); !errdefs.IsUnavailable(err) || w.stateAt("n1") != stopped ||
			w.count("Abort") > 0 {
			t.Fatalf("%v; the VM is %s", err, w.stateAt("n1"))
		}
	}
	// all nodes have reported since
	n1.Records = says{n1.Records, func(r *nodev1.Record) { r.Incarnation = 1_800_000_000 }}
	w.reconcile(n1)
	if w.stateAt("n1") != runs || w.count("Abort") != 1 {
		t.Errorf("the VM is %s after the store was settled", w.stateAt("n1"))
	}
}

// without are records that have none of a VM, or one of another VM of that name.
type without struct {
	nodev1.RecordsService
	other *nodev1.Record
}

func (w without) Get(context.Context, *nodev1.GetRequest) (*nodev1.Record, error) {
	if w.other == nil {
		return nil, errdefs.ErrNotFound
	}
	return w.other, nil
}

// TestRecordsThatDoNotKnowTheVM shows that a source which stands still for an operation stays where there
// is no record of it, however long: a copy of the records may be of before there was one. It is freed
// once the records know that it was removed.
func TestRecordsThatDoNotKnowTheVM(t *testing.T) {
	other := &nodev1.Record{Vm: vm, Uid: "another", Owner: &nodev1.Owner{Node: "n2"}, Generation: 40}
	for name, rec := range map[string]*nodev1.Record{"none": nil, "another VM's": other} {
		w := newWorld(t)
		w.mu.Lock()
		w.state["n1"], w.ref = stopped, &machinev1.Ref{Operation: "since", Attempt: 1, Generation: w.gens["n1"]}
		w.mu.Unlock()
		n1, told := w.start("n1"), &believed{}
		n1.opts.Grace, n1.Records, n1.Store = time.Nanosecond, without{n1.Records, rec}, told
		for range 3 {
			if err := n1.rounds.stray(t.Context(), vm, nil); !errdefs.IsUnavailable(err) || w.stateAt("n1") != stopped ||
				w.count("Release")+w.count("Abort") > 0 {
				t.Fatalf("%s: %v; the VM is %s", name, err, w.stateAt("n1"))
			}
		}
		if told.doubts == 0 {
			t.Errorf("%s: the controller is not told", name)
		}
		w.mu.Lock()
		w.blobs["elsewhere"] = true // what I3 counts: this VM was given up
		w.mu.Unlock()
		n1.Records = without{n1.Records, &nodev1.Record{Vm: vm, Uid: w.record().GetUid(), Removed: true}}
		for range 2 {
			w.reconcile(n1)
		}
		if w.stateAt("n1") != gone || w.count("Release") != 1 {
			t.Errorf("%s: the VM is %s after it was given up", name, w.stateAt("n1"))
		}
	}
}
