package engine

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// R4: a cold move is done also if its registry refuses to delete the snapshot before, or if that snapshot is gone
// by then. Refusals are 403 and 405; snapshot's TestDropIsRefused shows in which classes they come. The operation
// tells that cleanup is pending. What is pending is deleted once the registry lets it.
func TestMoveWhoseRegistryRefusesDeletes(t *testing.T) {
	for _, refusal := range []error{errdefs.ErrPermissionDenied, errdefs.ErrNotImplemented, errdefs.ErrUnavailable} {
		t.Run(refusal.Error(), func(t *testing.T) {
			w := newWorld(t)
			e := w.start("c")
			var mu sync.Mutex
			var told []Type
			e.Events = sink(func(ev Event) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, ev.Type)
			})
			w.move(e, "m1", "n2", "cold")
			<-e.idle("m1")
			first := w.record().GetSnapshots()[0]
			w.broke("Drop", refusal)
			op := w.move(e, "m2", "n1", "cold")
			<-e.idle("m2")
			if op.Phase != nodev1.Phase_PHASE_SUCCEEDED || !op.GetCleanupPending() || w.stateAt("n1") != runs {
				t.Fatalf("%v; VM is %s", op, w.stateAt("n1"))
			}
			mu.Lock()
			pending := slices.Contains(told, CleanupPending)
			mu.Unlock()
			if deletions := w.pendingDeletions(); !pending || len(deletions) != 1 ||
				deletions[0].GetSnapshot().GetDigest() != first.GetDigest() ||
				deletions[0].GetSnapshot().GetTag() != first.GetTag() {
				t.Errorf("told %v; owed %v", told, deletions)
			}
			if err := e.Sweep(t.Context()); !errors.Is(err, refusal) || len(w.pendingDeletions()) != 1 {
				t.Errorf("swept: %v, owed %v", err, w.pendingDeletions())
			}
			w.broke("Drop", nil)
			if err := e.Sweep(t.Context()); err != nil || len(w.pendingDeletions()) != 0 ||
				!slices.Equal(w.dropped, []string{first.GetTag()}) {
				t.Errorf("the registry deletes: %v, owed %v, dropped %v", err, w.pendingDeletions(), w.dropped)
			}
			if status, err := e.Status(t.Context(), "m2"); err != nil || status.GetOperation().GetCleanupPending() {
				t.Errorf("%v, %v", status, err)
			}
			w.check("after")
		})
	}
}

// R6, R7: a cold move that is turned back, or turned to another node, leaves what it has pushed under its tag. It
// stays there until a newer snapshot is there. No other attempt uses that: each restores its own (R1).
func TestTagSurvivesATurn(t *testing.T) {
	for _, to := range []string{"n1", "n3"} {
		w := newWorld(t)
		e := w.start("c")
		e.opts.Retention = Retention{Keep: 1, Scans: true}
		w.hangs("Prepare", true)
		if err := w.moveTo(e, "m", "n2", "cold"); err != nil {
			t.Fatal(err)
		}
		w.called("Prepare", 1)
		before := w.record().GetOperation()
		if before.GetDigest() == "" || before.GetTag() == "" {
			t.Fatalf("nothing is pushed: %v", before)
		}
		w.hangs("Prepare", false)
		if err := w.moveTo(e, "m", to, "cold"); err != nil {
			t.Fatal(err)
		}
		op := w.settle("m")
		<-e.idle("m")
		if err := e.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.check("m")
		listed := func() bool {
			return slices.ContainsFunc(w.record().GetSnapshots(), func(ref *nodev1.SnapshotRef) bool {
				return ref.GetDigest() == before.GetDigest() && ref.GetTag() == before.GetTag()
			})
		}
		if to == "n3" {
			if op.Phase != nodev1.Phase_PHASE_SUCCEEDED || op.GetDigest() == before.GetDigest() ||
				op.GetTag() == before.GetTag() || w.record().GetOwner().GetNode() != "n3" {
				t.Errorf("turned to n3: %v, was %v", op, before)
			}
			// R4
			if calls := w.calls(); !slices.Equal(w.dropped, []string{before.GetTag()}) ||
				slices.Index(calls, "Drop") < slices.Index(calls, "Run") {
				t.Errorf("turned to n3: dropped %v; calls %v", w.dropped, calls)
			}
			continue
		}
		if op.Phase != nodev1.Phase_PHASE_ABORTED || !listed() || slices.Contains(w.dropped, before.GetTag()) ||
			w.stateAt("n1") != runs {
			t.Fatalf("turned back: %v; record %v; dropped %v", op, w.record(), w.dropped)
		}
		next := w.move(e, "m2", "n2", "cold")
		<-e.idle("m2")
		if err := e.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if next.Phase != nodev1.Phase_PHASE_SUCCEEDED || next.GetDigest() == before.GetDigest() || listed() ||
			!slices.Contains(w.dropped, before.GetTag()) {
			t.Errorf("the next move: %v; record %v; dropped %v", next, w.record(), w.dropped)
		}
	}
}
