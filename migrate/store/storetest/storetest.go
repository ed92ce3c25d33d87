// Package storetest is the conformance suite of package store: every implementation
// runs it from its own test.
package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Run checks a store. open opens it in a place; opened once more, after reopen, the
// place holds what was applied.
func Run(t *testing.T, open func(t *testing.T) (st store.Store, reopen func() store.Store)) {
	for name, test := range map[string]func(*testing.T, store.Store, func() store.Store){
		"Versions": versions, "Durable": durable, "Race": race, "Names": names,
		"History": history, "TakenID": takenID, "RemovedOpen": removedOpen, "RemovedAndRemade": remade,
		"Owed": pendingDeletions, "OwedMany": manyPendingDeletions, "Incarnation": incarnation, "Revisions": revisions,
		"Find": find, "OwedOf": pendingOf, "Pages": pages, "FailsAlone": failsAlone, "Notes": notes,
		"NotesAreApart": notesApart, "NewNotes": newNotes,
	} {
		t.Run(name, func(t *testing.T) {
			st, reopen := open(t)
			test(t, st, reopen)
		})
	}
}

func vm(id string) *nodev1.VM { return &nodev1.VM{Namespace: "ns", Id: id} }

func apply(t *testing.T, st store.Store, rec *nodev1.Record, closed *nodev1.Operation) *nodev1.Record {
	t.Helper()
	out, err := st.Apply(t.Context(), rec.GetVm(), rec.GetVersion(), transition.Change{Record: rec, Closed: closed})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func same(t *testing.T, what string, want, got proto.Message) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

// versions: a change applies only to the version it was made from.
func versions(t *testing.T, st store.Store, _ func() store.Store) {
	state, err := st.Load(t.Context(), vm("a"), transition.Asked{Operation: "none"})
	if err != nil || state.Record != nil || state.Named != nil {
		t.Fatalf("empty store: %v, %v", state, err)
	}
	first := apply(t, st, &nodev1.Record{Vm: vm("a"), Uid: "u"}, nil)
	if first.GetVersion() == 0 {
		t.Fatal("version 0 means none")
	}
	second := apply(t, st, &nodev1.Record{Vm: vm("a"), Uid: "u", Generation: 1, Version: first.GetVersion()}, nil)
	for _, version := range []uint64{0, first.GetVersion(), second.GetVersion() + 1} {
		_, err := st.Apply(t.Context(), vm("a"), version,
			transition.Change{Record: &nodev1.Record{Vm: vm("a"), Generation: 9}})
		if !errdefs.IsConflict(err) {
			t.Fatalf("version %d of %d: %v", version, second.GetVersion(), err)
		}
	}
	state, err = st.Load(t.Context(), vm("a"), transition.Asked{})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "record", second, state.Record)
}

// durable: what Apply has answered is there for the next process.
func durable(t *testing.T, st store.Store, reopen func() store.Store) {
	op := &nodev1.Operation{Id: "op", Vm: vm("a"), Phase: nodev1.Phase_PHASE_PENDING}
	rec := apply(t, st, &nodev1.Record{Vm: vm("a"), Uid: "u", Operation: op}, nil)
	st = reopen()
	state, err := st.Load(t.Context(), vm("a"), transition.Asked{Operation: "op"})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "record", rec, state.Record)
	same(t, "operation", op, state.Named)
}

// race: of many changes to one version one applies.
func race(t *testing.T, st store.Store, _ func() store.Store) {
	rec := apply(t, st, &nodev1.Record{Vm: vm("a")}, nil)
	errs := make([]error, 16)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = st.Apply(t.Context(), vm("a"), rec.GetVersion(),
				transition.Change{Record: &nodev1.Record{Vm: vm("a"), Generation: uint64(i)}})
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errdefs.IsConflict(err) {
			t.Errorf("loser: %v", err)
		}
	}
	if won != 1 {
		t.Fatalf("%d changes of one version applied", won)
	}
}

// names: equal ids in two namespaces are two VMs, listed in order.
func names(t *testing.T, st store.Store, _ func() store.Store) {
	var want []string
	for _, namespace := range []string{"a", "ab", "b"} {
		for _, id := range []string{"x", "xy"} {
			apply(t, st, &nodev1.Record{Vm: &nodev1.VM{Namespace: namespace, Id: id}, Uid: namespace + "/" + id}, nil)
			want = append(want, namespace+"/"+id)
		}
	}
	all, err := st.List(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, rec := range all {
		got = append(got, rec.GetUid())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("list (-want +got):\n%s", diff)
	}
}

// history: closed operations are found by id, and bounded for each VM.
func history(t *testing.T, st store.Store, _ func() store.Store) {
	const extra = 3
	recs := map[string]*nodev1.Record{"a": {Vm: vm("a")}, "ab": {Vm: vm("ab")}}
	for i := range store.Kept + extra {
		for id, rec := range recs {
			closed := &nodev1.Operation{Id: fmt.Sprintf("%s-%d", id, i), Vm: vm(id), Phase: nodev1.Phase_PHASE_SUCCEEDED}
			rec.Operation = nil
			recs[id] = apply(t, st, rec, closed)
		}
	}
	for id := range recs {
		for i := range store.Kept + extra {
			name := fmt.Sprintf("%s-%d", id, i)
			_, err := st.Operation(t.Context(), name)
			if i < extra && !errdefs.IsNotFound(err) || i >= extra && err != nil {
				t.Errorf("operation %s: %v", name, err)
			}
		}
	}
	if _, err := st.Apply(t.Context(), vm("a"), recs["a"].GetVersion(), transition.Change{}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Operation(t.Context(), fmt.Sprintf("a-%d", extra)); !errdefs.IsNotFound(err) {
		t.Errorf("history of a removed VM: %v", err)
	}
	if _, err := st.Operation(t.Context(), fmt.Sprintf("ab-%d", extra)); err != nil {
		t.Errorf("history of another VM: %v", err)
	}
}

// takenID: one id is one operation, also for two VMs at once.
func takenID(t *testing.T, st store.Store, _ func() store.Store) {
	for _, id := range []string{"a", "b"} {
		apply(t, st, &nodev1.Record{Vm: vm(id)}, nil)
	}
	rec := func(id string) *nodev1.Record {
		state, err := st.Load(t.Context(), vm(id), transition.Asked{})
		if err != nil {
			t.Fatal(err)
		}
		state.Record.Operation = &nodev1.Operation{Id: "op", Vm: vm(id), Phase: nodev1.Phase_PHASE_PENDING}
		return state.Record
	}
	apply(t, st, rec("a"), nil)
	b := rec("b")
	_, err := st.Apply(t.Context(), vm("b"), b.GetVersion(), transition.Change{Record: b})
	if !errdefs.IsAlreadyExists(err) {
		t.Fatalf("the same id on another VM: %v", err)
	}
	if state, err := st.Load(t.Context(), vm("b"), transition.Asked{}); err != nil || state.Record.GetOperation() != nil {
		t.Fatalf("half applied: %v, %v", state.Record, err)
	}
}

// removedOpen: an operation that is open when its record is removed is gone with it.
func removedOpen(t *testing.T, st store.Store, _ func() store.Store) {
	rec := apply(t, st, &nodev1.Record{Vm: vm("a"), Operation: &nodev1.Operation{Id: "op", Vm: vm("a"),
		Phase: nodev1.Phase_PHASE_TRANSFERRING}}, nil)
	if _, err := st.Apply(t.Context(), vm("a"), rec.GetVersion(), transition.Change{}); err != nil {
		t.Fatal(err)
	}
	if op, err := st.Operation(t.Context(), "op"); !errdefs.IsNotFound(err) {
		t.Errorf("operation of a removed VM: %v, %v", op, err)
	}
	apply(t, st, &nodev1.Record{Vm: vm("b"), Operation: &nodev1.Operation{Id: "op", Vm: vm("b"),
		Phase: nodev1.Phase_PHASE_PENDING}}, nil)
}

// remade: a record that was removed repeats no version.
func remade(t *testing.T, st store.Store, _ func() store.Store) {
	old := apply(t, st, &nodev1.Record{Vm: vm("a"), Uid: "old"}, nil)
	if _, err := st.Apply(t.Context(), vm("a"), old.GetVersion(), transition.Change{}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Apply(t.Context(), vm("a"), old.GetVersion(), transition.Change{Record: old}); !errdefs.IsConflict(
		err) {
		t.Fatalf("change of a removed record: %v", err)
	}
	apply(t, st, &nodev1.Record{Vm: vm("a"), Uid: "new"}, nil)
	if _, err := st.Apply(t.Context(), vm("a"), old.GetVersion(), transition.Change{Record: old}); !errdefs.IsConflict(
		err) {
		t.Fatalf("change of the record before: %v", err)
	}
}

// pendingDeletions: what a change notes is there with it and not without it, also after the record's
// end, until it is cleared.
func pendingDeletions(t *testing.T, st store.Store, reopen func() store.Store) {
	deletion := func(id, digest string) *nodev1.Owed {
		return &nodev1.Owed{Vm: vm(id), Uid: "u", Snapshot: &nodev1.SnapshotRef{Repository: "r/u", Digest: digest, Tag: "t"}}
	}
	rec := apply(t, st, &nodev1.Record{Vm: vm("a")}, nil)
	apply(t, st, &nodev1.Record{Vm: vm("ab")}, nil)
	if _, err := st.Apply(t.Context(), vm("a"), rec.GetVersion()+9,
		transition.Change{PendingDeletions: []*nodev1.Owed{deletion("a", "d0")}}); !errdefs.IsConflict(err) {
		t.Fatal(err)
	}
	if _, err := st.Apply(t.Context(), vm("a"), rec.GetVersion(),
		transition.Change{PendingDeletions: []*nodev1.Owed{deletion("a", "d1"), deletion("a", "d2")}}); err != nil {
		t.Fatal(err)
	}
	st = reopen()
	all, err := st.PendingDeletions(t.Context(), store.WhichDeletions{})
	if err != nil || len(all) != 2 {
		t.Fatalf("owed %v, %v", all, err)
	}
	same(t, "owed", deletion("a", "d1"), all[0])
	for id, want := range map[string]int{"a": 2, "ab": 0} {
		if state, err := st.Load(t.Context(), vm(id), transition.Asked{PendingDeletions: true}); err != nil ||
			len(state.PendingDeletions) != want {
			t.Errorf("VM %s: owed %v, %v", id, state.PendingDeletions, err)
		}
		if state, err := st.Load(t.Context(), vm(id), transition.Asked{}); err != nil || len(state.PendingDeletions) != 0 {
			t.Errorf("VM %s, not asked: owed %v, %v", id, state.PendingDeletions, err)
		}
	}
	for range 2 {
		if err := st.Clear(t.Context(), vm("a"), "r/u", "d1"); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := st.PendingDeletions(t.Context(), store.WhichDeletions{}); err != nil || len(all) != 1 ||
		all[0].GetSnapshot().GetDigest() != "d2" {
		t.Fatalf("owed after a clear: %v, %v", all, err)
	}
}

// manyPendingDeletions: a record with as long a history as there is, and more snapshots than any schedule
// keeps, ends in one change, which notes them all.
func manyPendingDeletions(t *testing.T, st store.Store, _ func() store.Store) {
	rec := &nodev1.Record{Vm: vm("a")}
	for i := range store.Kept {
		rec = apply(t, st, rec, &nodev1.Operation{Id: fmt.Sprintf("op-%d", i), Vm: vm("a"),
			Phase: nodev1.Phase_PHASE_SUCCEEDED})
	}
	deletions := make([]*nodev1.Owed, 3*transition.MaxKept)
	for i := range deletions {
		deletions[i] = &nodev1.Owed{Vm: vm("a"), Snapshot: &nodev1.SnapshotRef{Repository: "r/u",
			Digest: fmt.Sprintf("d%03d", i)}}
	}
	if _, err := st.Apply(t.Context(), vm("a"), rec.GetVersion(),
		transition.Change{PendingDeletions: deletions}); err != nil {
		t.Fatal(err)
	}
	all, err := st.PendingDeletions(t.Context(), store.WhichDeletions{})
	if err != nil || len(all) != len(deletions) {
		t.Errorf("%d owed of %d, %v", len(all), len(deletions), err)
	}
	if state, err := st.Load(t.Context(), vm("a"), transition.Asked{Operation: "op-0"}); err != nil ||
		state.Record != nil || state.Named != nil {
		t.Errorf("what was removed: %v, %v, %v", state.Record, state.Named, err)
	}
}
