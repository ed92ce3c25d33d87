package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// rounds puts the VM to sleep and wakes it, n times, and leaves it asleep.
func (w *world) rounds(e *Engine, n int) {
	w.t.Helper()
	for i := range n {
		for j, give := range []func(*Engine, string) error{w.wake, w.hibernate} {
			id := fmt.Sprintf("r%d-%d", i, j)
			if err := give(e, id); err != nil {
				w.t.Fatal(err)
			}
			if op := w.settle(id); op.Phase != nodev1.Phase_PHASE_SUCCEEDED {
				w.t.Fatalf("operation %v", op)
			}
			<-e.idle(id) // its last look at the record is over too
		}
	}
}

func (w *world) pendingDeletions() []*nodev1.Owed {
	w.t.Helper()
	resp, err := w.records.Owed(w.t.Context(), &nodev1.OwedRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.GetOwed()
}

// TestTagThatStays: the deletion is decided in the record, refused by the store, pending and told. Nothing waits
// for it, and no wake restores the snapshot. Once the store lets it, it is done without help.
func TestTagThatStays(t *testing.T) {
	for _, refusal := range []error{errdefs.ErrPermissionDenied, errdefs.ErrNotImplemented, errdefs.ErrUnavailable} {
		w := asleep(t)
		first := w.record().GetOwner().GetDigest()
		e := w.start("n1")
		w.broke("Drop", refusal)
		w.rounds(e, 1)
		resp, err := w.records.Operation(t.Context(), &nodev1.OperationRequest{Id: "r0-1"})
		if op := resp.GetOperation(); err != nil || op.Phase != nodev1.Phase_PHASE_SUCCEEDED || !op.CleanupPending {
			t.Fatalf("operation %v", op)
		}
		if deletions := w.pendingDeletions(); len(deletions) != 1 || deletions[0].GetSnapshot().GetDigest() != first ||
			len(w.record().GetSnapshots()) != 1 {
			t.Fatalf("owed %v, record %v", deletions, w.record())
		}
		pending := func() bool {
			status, err := e.Status(t.Context(), "r0-1")
			if err != nil {
				t.Fatal(err)
			}
			return status.GetOperation().GetCleanupPending()
		}
		if !pending() {
			t.Fatal("status does not say that cleanup is pending")
		}
		_, err = e.Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, Digest: first, Force: true})
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "being deleted") {
			t.Fatalf("wake from a snapshot that is being deleted: %v", err)
		}
		if err := e.Sweep(t.Context()); !errors.Is(err, refusal) || !strings.Contains(err.Error(), first) {
			t.Fatalf("sweep: %v", err)
		}
		w.broke("Drop", nil)
		if err := e.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(w.pendingDeletions()) != 0 || len(w.dropped) != 1 || pending() {
			t.Fatalf("owed %v, dropped %v, pending %v", w.pendingDeletions(), w.dropped, pending())
		}
		w.check("after")
	}
}

// TestRetentionRule: the newest N and the young ones stay, and whatever is in use.
func TestRetentionRule(t *testing.T) {
	e := newWorld(t).start("n1")
	now := time.Unix(1_000_000, 0)
	e.now = func() time.Time { return now }
	rec := &nodev1.Record{Vm: vm, Uid: "u", Owner: &nodev1.Owner{Digest: "d1"}, Spent: []string{"d0", "d2"}, Lost: "d3"}
	for i := range 8 {
		rec.Snapshots = append(rec.Snapshots, &nodev1.SnapshotRef{
			Digest: fmt.Sprint("d", i), CreatedUnixNano: now.Add(time.Duration(i-10) * time.Hour).UnixNano(),
		})
	}
	for _, tt := range []struct {
		keep  int
		young time.Duration
		owner *nodev1.Owner
		want  string
	}{
		{1, 0, &nodev1.Owner{Digest: "d1"}, "d0 d2 d4 d5 d6"},
		{3, 0, &nodev1.Owner{Digest: "d1"}, "d0 d2 d4"},
		{1, 5*time.Hour + time.Minute, &nodev1.Owner{Digest: "d1"}, "d0 d2 d4"},
		{1, 0, &nodev1.Owner{Node: "n1"}, "d0 d1 d4 d5 d6"}, // d2 is what the VM runs from
		{20, 0, &nodev1.Owner{Node: "n1"}, ""},
	} {
		e.opts.Retention = Retention{Keep: tt.keep, For: tt.young}
		rec.Owner = tt.owner
		var got []string
		for _, ref := range e.retention.surplus(rec) {
			got = append(got, ref.GetDigest())
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("keep %d, %v, owner %v (-want +got):\n%s", tt.keep, tt.young, tt.owner, diff)
		}
	}
	rec.Operation = &nodev1.Operation{Id: "op", Phase: nodev1.Phase_PHASE_TRANSFERRING}
	if left := e.retention.surplus(rec); len(left) != 0 {
		t.Errorf("surplus while an operation is under way: %v", left)
	}
}

// TestDeletionFailsAtEachCall: whichever call of a sweep fails, or loses its answer, what owns the VM stays. The
// next sweep ends with nothing pending and nothing surplus.
func TestDeletionFailsAtEachCall(t *testing.T) {
	for _, class := range []error{errdefs.ErrUnavailable, errdefs.ErrPermissionDenied} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/after=%v", class, after), func(t *testing.T) {
				t.Parallel()
				total := sweepFails(t, fault{})
				if total < 8 {
					t.Fatalf("only %d calls", total)
				}
				for n := 1; n <= total; n++ {
					sweepFails(t, fault{call: n, after: after, err: class})
				}
			})
		}
	}
}

// sweepFails is one of them; it answers how many calls a sweep makes.
func sweepFails(t *testing.T, f fault) int {
	t.Helper()
	w := asleep(t)
	e := w.start("n1")
	e.opts.Retention.Keep = 4
	w.rounds(e, 2)
	e.opts.Retention = Retention{Keep: 1, Grace: time.Minute, Scans: true}
	w.mu.Lock()
	w.log, w.fault = nil, f
	w.mu.Unlock()
	tend := func() error { return errors.Join(e.Sweep(t.Context()), e.Scan(t.Context())) }
	if first := tend(); (first == nil) != (f.err == nil) {
		t.Fatalf("call %d fails with %v: the sweep answers %v", f.call, f.err, first)
	}
	calls := len(w.calls())
	w.strike(fault{})
	if err := tend(); err != nil {
		t.Fatalf("call %d fails with %v: the sweep after it: %v", f.call, f.err, err)
	}
	if rec := w.record(); len(rec.GetSnapshots()) != 1 ||
		rec.GetSnapshots()[0].GetDigest() != rec.GetOwner().GetDigest() || len(w.pendingDeletions()) != 0 {
		t.Fatalf("call %d fails with %v: record %v, owed %v", f.call, f.err, rec, w.pendingDeletions())
	}
	w.check(fmt.Sprintf("call %d", f.call))
	return calls
}

// TestScan is: what no record names goes after the grace time, and nothing else.
func TestScan(t *testing.T) {
	w := asleep(t)
	e := w.start("n1")
	now := time.Unix(1_000_000, 0)
	e.now = func() time.Time { return now }
	e.opts.Retention = Retention{Keep: 1, Grace: time.Hour, Scans: true}
	rec := w.record()
	w.tags = []Leftover{
		{Tag: "owner", Digest: rec.GetOwner().GetDigest(), UID: rec.GetUid()},
		{Tag: "foreign", Digest: "sha256:f", UID: "other"},
		// than the backup
		{Tag: "later", Digest: "sha256:9", UID: rec.GetUid(), Generation: rec.GetGeneration() + 1, Operation: "z"},
		{Tag: "left", Digest: "sha256:1", UID: rec.GetUid(), Operation: "x"},
		{Tag: "hold", Digest: "sha256:2", UID: rec.GetUid(), Operation: "y", Hold: true},
	}
	scan := func(ahead time.Duration) []string {
		t.Helper()
		now = now.Add(ahead)
		if err := e.Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		got := w.dropped
		w.dropped = nil
		return got
	}
	if got := append(scan(0), scan(59*time.Minute)...); len(got) != 0 {
		t.Fatalf("dropped within the grace time: %v", got)
	}
	if diff := cmp.Diff([]string{"left", "hold"}, scan(time.Hour)); diff != "" {
		t.Fatalf("dropped (-want +got):\n%s", diff)
	}
	// A snapshot that was a leftover and is named by the time of its end stays.
	w.tags[3].Digest = "sha256:3"
	scan(time.Hour)
	w.broke("Drop", errdefs.ErrPermissionDenied)
	now = now.Add(2 * time.Hour)
	if err := e.Scan(t.Context()); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "default/web") {
		t.Fatalf("a store that refuses: %v", err) // Told, and the VM is as it was
	}
	w.check("refused")
	w.broke("Drop", nil)
	w.broke("Leftovers", errdefs.ErrUnavailable)
	now = now.Add(2 * time.Hour)
	if err := e.Scan(t.Context()); !errdefs.IsUnavailable(err) || len(w.dropped) != 0 {
		t.Fatalf("a store that is away: %v, dropped %v", err, w.dropped)
	}
}

// A scan leaves alone the VM on which an operation is open, and does not begin before its
// time. What it watched before the operation it does not watch for the grace time anew: a VM
// that is checkpointed often would have its leftovers for ever.
func TestScanWaitsForOperations(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	now := time.Unix(1_000_000, 0)
	e.now = func() time.Time { return now }
	e.opts.Retention = Retention{Keep: 1, Grace: time.Minute, Scans: true}
	w.tags = []Leftover{{Tag: "hold", Digest: "sha256:2", UID: w.record().GetUid(), Operation: "op", Hold: true}}
	if err := e.Scan(t.Context()); err != nil || len(w.dropped) != 0 {
		t.Fatalf("%v, dropped %v", err, w.dropped)
	}
	w.broke("Capture", errdefs.ErrUnavailable)
	w.broke("Abort", errdefs.ErrUnavailable)
	if err := w.hibernate(e, "op"); err != nil {
		t.Fatal(err)
	}
	w.called("Abort", 1)
	w.files = 2 // of the capture, and older than the grace time by now
	for range 5 {
		now = now.Add(time.Hour)
		if err := e.Scan(t.Context()); err != nil || len(w.dropped) != 0 || w.files != 2 {
			t.Fatalf("%v, dropped %v, %d files", err, w.dropped, w.files)
		}
	}
	w.broke("Abort", nil)
	w.settle("op")
	now = now.Add(time.Hour)
	if err := e.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(w.dropped) != 1 {
		t.Fatalf("dropped %v", w.dropped)
	}
}

// TestPrune tells what it would delete, and deletes that.
func TestPrune(t *testing.T) {
	w := asleep(t)
	e := w.start("n1")
	now := time.Unix(1_000_000, 0)
	e.now = func() time.Time { return now }
	e.opts.Retention.Keep = 3
	w.rounds(e, 2)
	w.broke("Drop", errdefs.ErrPermissionDenied)
	if _, err := w.records.Trim(t.Context(),
		&nodev1.TrimRequest{Vm: vm, Digest: w.record().GetSnapshots()[0].GetDigest()}); err != nil {
		t.Fatal(err)
	}
	w.broke("Drop", nil)
	e.opts.Retention = Retention{Keep: 1, Grace: time.Minute, Scans: true}
	w.tags = []Leftover{{Tag: "left", Digest: "sha256:1", UID: w.record().GetUid(), Operation: "x"}}
	w.files = 2
	if err := e.Scan(t.Context()); err != nil { // sees it first, and collects
		t.Fatal(err)
	}
	now, w.files = now.Add(time.Hour), 2
	prune := func(dry bool) []string {
		t.Helper()
		resp, err := e.Prune(t.Context(), &nodev1.PruneRequest{Vm: vm, DryRun: dry})
		if err != nil || resp.GetWarning() != "" {
			t.Fatal(err, resp.GetWarning())
		}
		var why []string
		for _, p := range resp.GetPruned() {
			if p.GetError() != "" {
				t.Errorf("%s: %s", p.GetWhy(), p.GetError())
			}
			why = append(why, p.GetWhy())
		}
		return why
	}
	want := []string{
		"its deletion was decided and could not be done", "older than the newest 1 of its VM",
		"no record names it; operation x left it", "2 files that no manifest lists",
	}
	if diff := cmp.Diff(want, prune(true)); diff != "" {
		t.Errorf("dry (-want +got):\n%s", diff)
	}
	if len(w.dropped) != 0 || w.files != 2 || len(w.pendingDeletions()) != 1 {
		t.Errorf("a dry run dropped %v, %d files, owed %v", w.dropped, w.files, w.pendingDeletions())
	}
	if diff := cmp.Diff(want, prune(false)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(w.dropped) != 3 || w.files != 0 || len(w.pendingDeletions()) != 0 || len(w.record().GetSnapshots()) != 1 {
		t.Errorf("dropped %v, %d files, owed %v", w.dropped, w.files, w.pendingDeletions())
	}
	w.check("pruned")
}

// R4: a wake's own snapshot is not touched before RUNNING is durable. Here the wake does not touch it at all, and
// each call of the wake comes before any deletion.
func TestWakeDropsNothingBeforeItRuns(t *testing.T) {
	w := asleep(t)
	e := w.start("n2")
	if err := w.wake(e, "w"); err != nil {
		t.Fatal(err)
	}
	w.settle("w")
	for _, call := range w.calls() {
		if call == "Drop" || call == "Trim" {
			t.Errorf("calls of a wake: %v", w.calls())
		}
	}
	if err := e.Sweep(context.Background()); err != nil || len(w.dropped) != 0 {
		t.Errorf("%v; what the VM runs from was dropped: %v", err, w.dropped)
	}
}

// A store that hangs over a deletion does not hold up an operation (R4); it stays pending.
func TestStoreThatHangs(t *testing.T) {
	w := asleep(t)
	e := w.start("n1")
	e.prompt = 20 * time.Millisecond
	w.mu.Lock()
	w.hang = map[string]bool{"Drop": true}
	w.mu.Unlock()
	w.rounds(e, 1)
	if resp, err := w.records.Operation(t.Context(), &nodev1.OperationRequest{Id: "r0-1"}); err != nil ||
		!resp.GetOperation().GetCleanupPending() || len(w.pendingDeletions()) != 1 {
		t.Errorf("operation %v, %v, owed %v", resp.GetOperation(), err, w.pendingDeletions())
	}
}
