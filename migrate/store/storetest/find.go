package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// indexed makes a store's index one that is read, where that is not so by itself.
func indexed(t *testing.T, st store.Store) {
	t.Helper()
	if s, ok := st.(store.Shared); ok {
		if err := s.Reindex(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
}

// Found compares which VMs Find answers with those that are wanted.
func Found(t *testing.T, st store.Store, which store.Which, want ...string) {
	t.Helper()
	all, err := st.Find(t.Context(), which)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, rec := range all.Records {
		got = append(got, rec.GetVm().GetId())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("found of %+v (-want +got):\n%s", which, diff)
	}
}

// find: who asks for a node's, for moves, for a uid gets those records as they are now: what left a
// node, ended or was removed is found no more, and the same for the next process.
func find(t *testing.T, st store.Store, reopen func() store.Store) {
	indexed(t, st)
	node := func(n string) *nodev1.Owner { return &nodev1.Owner{Node: n} }
	apply(t, st, &nodev1.Record{Vm: vm("c"), Uid: "uc", Owner: node("n1")}, nil)
	a := apply(t, st, &nodev1.Record{Vm: vm("a"), Uid: "ua", Owner: node("n1")}, nil)
	apply(t, st, &nodev1.Record{Vm: vm("b"), Uid: "ub", Owner: node("n10")}, nil)
	d := apply(t, st, &nodev1.Record{Vm: vm("d"), Uid: "ud", Owner: node("n2"), Operation: &nodev1.Operation{
		Id: "op", Vm: vm("d"), Kind: nodev1.Kind_KIND_MIGRATE, Phase: nodev1.Phase_PHASE_PENDING, Source: "n2",
		Destination: "n1",
	}}, nil)
	check := func(n1, n2, moves []string) {
		t.Helper()
		Found(t, st, store.Which{Node: "n1"}, n1...)
		Found(t, st, store.Which{Node: "n2"}, n2...)
		Found(t, st, store.Which{Moves: true}, moves...)
		Found(t, st, store.Which{Node: "n10"}, "b")
		Found(t, st, store.Which{Node: "n"})
		Found(t, st, store.Which{UIDs: []string{"ub", "none", "uc"}}, "b", "c")
	}
	check([]string{"a", "c", "d"}, []string{"d"}, []string{"d"})
	Found(t, st, store.Which{Node: "n10", Moves: true}, "b", "d")
	waits := apply(t, st, &nodev1.Record{Vm: vm("e"), Uid: "ue", Operation: &nodev1.Operation{Id: "wake", Vm: vm("e"),
		Kind: nodev1.Kind_KIND_WAKE, Phase: nodev1.Phase_PHASE_PENDING, ByPlace: true}}, nil)
	Found(t, st, store.Which{Moves: true}, "d", "e") // the controller drives it, until it has a node
	waits.Operation.Destination = "n3"
	apply(t, st, waits, nil)
	Found(t, st, store.Which{Moves: true}, "d")
	Found(t, st, store.Which{Node: "n3"}, "e")
	closed := d.GetOperation()
	closed.Phase = nodev1.Phase_PHASE_SUCCEEDED
	apply(t, st, &nodev1.Record{Vm: vm("d"), Uid: "ud", Owner: node("n1"), Version: d.GetVersion()}, closed)
	a.Owner = node("n2")
	a = apply(t, st, a, nil)
	check([]string{"c", "d"}, []string{"a"}, nil)
	st = reopen()
	if _, err := st.Apply(t.Context(), a.GetVm(), a.GetVersion(), transition.Change{}); err != nil {
		t.Fatal(err)
	}
	check([]string{"c", "d"}, nil, nil)
	Found(t, st, store.Which{UIDs: []string{"ua"}})
}

// pendingOf: a request for the pending deletions of one VM, or of one deleter, gets them. The
// deleter that a deletion names comes before the one that made the snapshot.
func pendingOf(t *testing.T, st store.Store, _ func() store.Store) {
	indexed(t, st)
	rec := apply(t, st, &nodev1.Record{Vm: vm("a"), Uid: "u"}, nil)
	deletion := func(id, digest, maker, payer string) *nodev1.Owed {
		return &nodev1.Owed{Vm: vm(id), Payer: payer, Snapshot: &nodev1.SnapshotRef{Repository: "r", Digest: digest,
			Node: maker}}
	}
	if _, err := st.Apply(t.Context(), vm("a"), rec.GetVersion(), transition.Change{PendingDeletions: []*nodev1.Owed{
		deletion("a", "d1", "n1", ""), deletion("a", "d2", "n1", "n2"), deletion("a", "d3", "", ""),
		deletion("ab", "d4", "n1", ""),
	}}); err != nil {
		t.Fatal(err)
	}
	check := func(which store.WhichDeletions, want ...string) {
		t.Helper()
		if which.VM == nil && which.Deleter != "" {
			found, err := st.Find(t.Context(), store.Which{Node: "none", Deleter: which.Deleter})
			if err != nil || found.HasDeletions == nil || *found.HasDeletions != (len(want) > 0) {
				t.Errorf("node %s has %d to delete: Find answers %v, %v", which.Deleter, len(want), found.HasDeletions, err)
			}
		}
		all, err := st.PendingDeletions(t.Context(), which)
		var got []string
		for _, o := range all {
			got = append(got, o.GetSnapshot().GetDigest())
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("owed of %v: %v (-want +got):\n%s", which, err, diff)
		}
	}
	check(store.WhichDeletions{}, "d1", "d2", "d3", "d4")
	check(store.WhichDeletions{Deleter: "n1"}, "d1", "d4")
	check(store.WhichDeletions{Deleter: "n2"}, "d2")
	check(store.WhichDeletions{VM: vm("a")}, "d1", "d2", "d3")
	check(store.WhichDeletions{VM: vm("a"), Deleter: "n1"}, "d1")
	if err := st.Clear(t.Context(), vm("a"), "r", "d1"); err != nil {
		t.Fatal(err)
	}
	check(store.WhichDeletions{Deleter: "n1"}, "d4")
	check(store.WhichDeletions{Deleter: "n"})
	if found, err := st.Find(t.Context(), store.Which{Node: "none"}); err != nil || found.HasDeletions != nil {
		t.Errorf("a caller that does not ask hears %v, %v", found.HasDeletions, err)
	}
}

// pages: a list that is read piece by piece, each from the last one's end, is the whole list.
func pages(t *testing.T, st store.Store, _ func() store.Store) {
	const many = 40
	for i := range many {
		apply(t, st, &nodev1.Record{Vm: vm(fmt.Sprintf("%03d", i)), Uid: "u"}, nil)
	}
	after, count, reads := "", 0, 0
	for {
		some, err := st.List(t.Context(), after, 200)
		if err != nil {
			t.Fatal(err)
		}
		if len(some) == 0 {
			break
		}
		for _, rec := range some {
			if want := fmt.Sprintf("%03d", count); rec.GetVm().GetId() != want {
				t.Fatalf("%s where %s belongs", rec.GetVm().GetId(), want)
			}
			count++
		}
		after = "ns\x00" + some[len(some)-1].GetVm().GetId()
		reads++
	}
	if count != many || reads < 2 || reads > many/2 {
		t.Errorf("%d records of %d in %d reads", count, many, reads)
	}
}

// failsAlone: of changes that come together each is answered for itself: those that are refused
// keep none of the others, and what is answered is in the store.
func failsAlone(t *testing.T, st store.Store, reopen func() store.Store) {
	const many = 64
	recs := make([]*nodev1.Record, many)
	for i := range recs {
		recs[i] = apply(t, st, &nodev1.Record{Vm: vm(fmt.Sprintf("%02d", i)), Uid: "u"}, nil)
	}
	errs := make([]error, many)
	var wg sync.WaitGroup
	for i, rec := range recs {
		wg.Go(func() {
			version := rec.GetVersion()
			if i%4 == 0 {
				version += 1000
			}
			_, errs[i] = st.Apply(context.WithoutCancel(t.Context()), rec.GetVm(), version,
				transition.Change{Record: &nodev1.Record{Vm: rec.GetVm(), Uid: "u", Generation: 1}})
		})
	}
	wg.Wait()
	st = reopen()
	all, err := st.List(t.Context(), "", 0)
	if err != nil || len(all) != many {
		t.Fatalf("%d records, %v", len(all), err)
	}
	for i, rec := range all {
		want := uint64(1)
		if i%4 == 0 {
			want = 0
		}
		if rec.GetGeneration() != want || (want == 0) != errdefs.IsConflict(errs[i]) || want == 1 && errs[i] != nil {
			t.Errorf("record %d: generation %d, %v", i, rec.GetGeneration(), errs[i])
		}
	}
	if !slices.ContainsFunc(errs, errdefs.IsConflict) {
		t.Error("nothing was refused")
	}
}
