package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// take takes a checkpoint to its end.
func (w *world) take(e *Engine, id string) *nodev1.Operation {
	w.t.Helper()
	if err := w.checkpoint(e, id); err != nil {
		w.t.Fatal(err)
	}
	op := w.settle(id)
	if op.Phase != nodev1.Phase_PHASE_SUCCEEDED {
		w.t.Fatalf("checkpoint %s: %v", id, op)
	}
	w.check(id)
	return op
}

// TestCheckpoint: the VM goes on under the same owner and generation, and the record lists
// the snapshot, so that no scan takes it for a leftover.
func TestCheckpoint(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	before := w.record()
	op := w.take(e, "c1")
	rec := w.record()
	if rec.GetOwner().GetNode() != "n1" || rec.GetGeneration() != before.GetGeneration() || len(rec.GetSpent()) != 0 {
		t.Fatalf("record %v", rec)
	}
	if all := rec.GetSnapshots(); len(all) != 1 || all[0].GetDigest() != op.GetDigest() || !all[0].GetCheckpoint() {
		t.Fatalf("snapshots %v", all)
	}
	if !named(rec, Leftover{UID: rec.GetUid(), Digest: op.GetDigest(), Generation: op.GetGeneration()}) {
		t.Error("a scan would delete it")
	}
	if w.state["n1"] != runs {
		t.Errorf("the VM is %s", w.state["n1"])
	}
}

// TestCheckpointIsRefused of a VM that is asleep, and while an operation is open.
func TestCheckpointIsRefused(t *testing.T) {
	w := asleep(t)
	if err := w.checkpoint(w.start("n1"), "c"); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "sha256:") {
		t.Errorf("of a VM that sleeps: %v", err)
	}
	w = newWorld(t)
	inside := make(chan struct{})
	w.waitInside = inside
	e := w.start("n1")
	if err := w.checkpoint(e, "first"); err != nil {
		t.Fatal(err)
	}
	<-inside
	if err := w.checkpoint(e, "second"); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "first") {
		t.Errorf("while another is open: %v", err)
	}
}

// TestCheckpointsAreKept: of a schedule so many, else as the rule says.
func TestCheckpointsAreKept(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	for _, id := range []string{"a", "b"} {
		w.take(e, id)
	}
	if n := len(w.record().GetSnapshots()); n != 1 {
		t.Fatalf("%d snapshots without a schedule", n)
	}
	_, err := w.records.Schedule(t.Context(),
		&nodev1.ScheduleRequest{Vm: vm, Schedule: &nodev1.Schedule{EveryMs: 60000, Keep: 3}})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"c", "d", "e"} {
		w.take(e, id)
	}
	if n := len(w.record().GetSnapshots()); n != 3 {
		t.Fatalf("%d snapshots with a schedule that keeps 3", n)
	}
	if err := w.hibernate(e, "h"); err != nil {
		t.Fatal(err)
	}
	w.settle("h")
	if n := len(w.record().GetSnapshots()); n != 4 {
		t.Fatalf("%d snapshots after a hibernate: want it and 3 checkpoints", n)
	}
}

// What a person has ordered stays, and so does what is pinned, whatever the rule and the schedule say: an engine of the
// release before, which knows of neither, is refused, and takes that for an answer.
func TestHandMadeStay(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	order := func(req *nodev1.CheckpointRequest) {
		t.Helper()
		req.Vm = vm
		status, err := e.Checkpoint(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if op := w.settle(status.GetOperation().GetId()); op.Phase != nodev1.Phase_PHASE_SUCCEEDED {
			t.Fatalf("checkpoint: %v", op)
		}
	}
	order(&nodev1.CheckpointRequest{Name: "before-upgrade"})
	order(&nodev1.CheckpointRequest{Scheduled: true, Pinned: true})
	for range 3 {
		order(&nodev1.CheckpointRequest{Scheduled: true})
	}
	refs := w.record().GetSnapshots()
	if len(refs) != 3 || refs[0].GetName() != "before-upgrade" || !refs[0].GetManual() || !refs[1].GetPinned() ||
		refs[2].GetManual() {
		t.Fatalf("snapshots %v", refs)
	}
	before := w.record()
	for _, ref := range refs[:2] { // as the release before chooses them
		_, err := w.records.Trim(t.Context(), &nodev1.TrimRequest{Vm: vm, Digest: ref.GetDigest(), Payer: "n1"})
		if !errdefs.IsFailedPrecondition(err) {
			t.Errorf("trim of %v: %v", ref, err)
		}
	}
	resp, err := e.Prune(t.Context(), &nodev1.PruneRequest{})
	if err != nil || len(resp.GetPruned()) > 0 {
		t.Errorf("prune: %v, %v", resp, err)
	}
	if err := e.Sweep(t.Context()); err != nil || w.record().GetVersion() != before.GetVersion() {
		t.Errorf("a sweep: %v, record %v", err, w.record())
	}
	for _, l := range refs[:2] {
		if !named(w.record(), Leftover{UID: w.record().GetUid(), Digest: l.GetDigest(), Generation: l.GetGeneration()}) {
			t.Errorf("a scan would delete %v", l)
		}
	}
}

// A controller of the release before would forget a name unsaid: the order is refused before anything is made. While
// the controller does not answer, no one knows which it is.
func TestNamesNeedTheirController(t *testing.T) {
	for said, is := range map[error]func(error) bool{
		errdefs.ErrNotImplemented: errdefs.IsFailedPrecondition, errdefs.ErrUnavailable: errdefs.IsUnavailable,
		errdefs.ErrPermissionDenied: errdefs.IsPermissionDenied,
	} {
		w := newWorld(t)
		e := w.start("n1")
		w.broke("Pin", said)
		for _, req := range []*nodev1.CheckpointRequest{{Vm: vm, Name: "x"}, {Vm: vm, Pinned: true}} {
			if _, err := e.Checkpoint(t.Context(), req); !is(err) {
				t.Errorf("%v: %v", said, err)
			}
		}
		if rec := w.record(); rec.GetOperation() != nil || w.captures > 0 {
			t.Errorf("%v: an operation was opened: %v", said, rec)
		}
	}
}

// TestDue: the record alone keeps a schedule, over a restart too. A node leaves the VM of another node alone. A VM
// whose checkpoint fails waits for its next turn.
func TestDue(t *testing.T) {
	w := newWorld(t)
	clock := time.Unix(0, 0)
	e := w.start("n1")
	e.now = func() time.Time { return clock }
	_, err := w.records.Schedule(t.Context(),
		&nodev1.ScheduleRequest{Vm: vm, Schedule: &nodev1.Schedule{EveryMs: 60000, Keep: 2}})
	if err != nil {
		t.Fatal(err)
	}
	due := func(after time.Duration, want int) {
		t.Helper()
		clock = clock.Add(after)
		if err := e.Due(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.until("no operation is open", func() bool { return w.record().GetOperation() == nil })
		if w.captures != want {
			t.Fatalf("%d captures, want %d", w.captures, want)
		}
	}
	due(0, 0)
	due(59*time.Second, 0)
	w.broke("Capture", errdefs.ErrUnavailable)
	due(time.Second, 0) // it fails
	w.broke("Capture", nil)
	due(time.Second, 0)
	due(59*time.Second, 1)
	// The records know when: their clock is the host's.
	taken := time.Unix(0, w.record().GetSnapshots()[0].GetCreatedUnixNano())
	e = w.start("n1")
	e.now = func() time.Time { return clock }
	clock = taken.Add(59 * time.Second)
	due(0, 1)
	due(2*time.Second, 2)
	// The host's clock is set back: the schedule goes on by the new one, over a restart too.
	clock = clock.Add(-6 * time.Hour)
	due(0, 2)
	e = w.start("n1")
	e.now = func() time.Time { return clock }
	due(0, 3)
	due(59*time.Second, 3)
	due(time.Second, 4)
	clock = clock.Add(6 * time.Hour)
	other := w.start("n2")
	other.now = func() time.Time { return clock.Add(time.Hour) }
	if err := other.Due(t.Context()); err != nil || w.captures != 4 {
		t.Fatalf("another node: %d captures, %v", w.captures, err)
	}
}

// TestLostNode is: by explicit order the VM of a lost node is woken elsewhere from its newest snapshot, under a new
// generation. The answer tells the age of that state.
func TestLostNode(t *testing.T) {
	w := newWorld(t)
	first := w.start("n1")
	w.take(first, "c1")
	newest := w.take(first, "c2").GetDigest()
	inside := make(chan struct{})
	w.waitInside = inside
	if err := w.checkpoint(first, "c3"); err != nil {
		t.Fatal(err)
	}
	<-inside
	first.Close() // with an operation open
	w.mu.Lock()
	delete(w.state, "n1")
	w.mu.Unlock()

	e, generation := w.start("n2"), w.record().GetGeneration()
	for name, req := range map[string]*nodev1.WakeRequest{
		"no order":     {Vm: vm},
		"force alone":  {Vm: vm, Force: true, Digest: newest},
		"another node": {Vm: vm, LostNode: "n3"},
	} {
		if _, err := e.Wake(t.Context(), req); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := e.Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, LostNode: "n2"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("the node itself: %v", err)
	}
	status, err := e.Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, LostNode: "n1", Operation: "w"})
	if err != nil {
		t.Fatal(err)
	}
	if note := status.GetOperation().GetNote(); !strings.Contains(note, "n1") || !strings.Contains(note, "20") {
		t.Errorf("note %q", note)
	}
	if op := w.settle("w"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED || op.Digest != newest {
		t.Fatalf("wake: %v", op)
	}
	w.check("w")
	if rec := w.record(); rec.GetGeneration() <= generation || rec.GetOwner().GetNode() != "n2" {
		t.Errorf("record %v", rec)
	}
	if op := w.settle("c3"); op.Phase != nodev1.Phase_PHASE_FAILED || !strings.Contains(op.Reason, "lost") {
		t.Errorf("the lost node's operation: %v", op)
	}
}

// TestRollback: an older checkpoint is restored by explicit order, never while the VM
// runs, and the newer state is said and stays.
func TestRollback(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	e.opts.Retention.Keep = 3
	old := w.take(e, "c1").GetDigest()
	if _, err := e.Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, Digest: old, Force: true}); !errdefs.IsFailedPrecondition(
		err) {
		t.Fatalf("while it runs: %v", err)
	}
	if err := w.hibernate(e, "h"); err != nil {
		t.Fatal(err)
	}
	newer := w.settle("h").GetDigest()
	if _, err := e.Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, Digest: old}); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("without force: %v", err)
	}
	status, err := e.Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, Digest: old, Force: true, Operation: "w"})
	if err != nil || !strings.Contains(status.GetOperation().GetNote(), newer) {
		t.Fatalf("note %q: %v", status.GetOperation().GetNote(), err)
	}
	if op := w.settle("w"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED || op.Digest != old {
		t.Fatalf("wake: %v", op)
	}
	w.check("w")
	if !w.blobs[newer] {
		t.Error("the newer state is gone")
	}
}
