//go:build integration

package store_test

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/store"
	rootstore "godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Somebody installs the schemas of an older build, which lack a field of the records. The API server tells objects
// without it then, and would drop it with the next write. Each read tells everything or is an error, and nothing is
// written. With the schemas of this build again, the record is as it was.
func TestSchemaWithoutAField(t *testing.T) {
	for _, field := range []string{"record", "closed", "owed", "under", "spec", "summary"} {
		t.Run(field, func(t *testing.T) { withoutField(t, field) })
	}
}

func withoutField(t *testing.T, field string) {
	st, _ := followed(t, nil)
	state, err := st.SetState(t.Context(), 0, &nodev1.StoreState{Incarnation: 1})
	if err != nil {
		t.Fatal(err)
	}
	open := &nodev1.Operation{Id: "open", Vm: vm("a"), Phase: nodev1.Phase_PHASE_SWITCHING}
	rec, err := st.Apply(t.Context(), vm("a"), 0, transition.Change{Under: state.GetVersion(),
		Record: &nodev1.Record{Vm: vm("a"), Uid: "u", Generation: 3, Owner: &nodev1.Owner{Node: "a"}, Operation: open},
		Closed: &nodev1.Operation{Id: "closed", Vm: vm("a"), Phase: nodev1.Phase_PHASE_SUCCEEDED},
		PendingDeletions: []*nodev1.Owed{{Vm: vm("a"), Payer: "a",
			Snapshot: &nodev1.SnapshotRef{Repository: "r", Digest: "d"}}}})
	if err != nil {
		t.Fatal(err)
	}
	which := rootstore.Which{Node: "a", Deleter: "a"}
	apitest.Eventually(t, "the mirror has the record", func() (bool, error) {
		found, ok := st.FindCached(which)
		return ok && len(found.Records) == 1, nil
	})
	again := reopen(t)
	back := server.Downgrade(t, "vmrecords", field, "", "ns.a")

	asWritten(t, again, rec, false)
	if found, ok := st.FindCached(which); ok && len(found.Unread) == 0 && (len(found.Records) != 1 ||
		!*found.HasDeletions) {
		t.Errorf("the mirror says %v", found)
	}
	next := proto.CloneOf(rec)
	next.Operation.Phase = nodev1.Phase_PHASE_COMMITTED
	for what, st := range map[string]rootstore.Store{"the writer": st, "another process": again} {
		if got, err := st.Apply(t.Context(), vm("a"), rec.GetVersion(), transition.Change{Record: next,
			Under: state.GetVersion()}); err == nil {
			t.Errorf("%s has written %v", what, got)
		}
		if got, err := st.Apply(t.Context(), vm("a"), 0, transition.Change{Record: &nodev1.Record{Vm: vm("a")},
			Under: state.GetVersion()}); err == nil {
			t.Errorf("%s has made the record anew: %v", what, got)
		}
		if err := st.Clear(t.Context(), vm("a"), "r", "d"); err == nil {
			t.Errorf("%s has cleared a deletion", what)
		}
	}
	if got, err := again.SetState(t.Context(), state.GetVersion(), state); err == nil {
		t.Errorf("the state was written, and the records touched: %v", got)
	}
	back()
	asWritten(t, again, rec, true)
}

// asWritten compares all that is read with what was written. Unless must, an error is right too.
func asWritten(t *testing.T, st rootstore.Store, rec *nodev1.Record, must bool) {
	t.Helper()
	judge := func(what string, err error, ok bool) {
		t.Helper()
		if err != nil && must || err == nil && !ok {
			t.Errorf("%s: %v, and it is what was written: %t", what, err, ok)
		}
	}
	now, err := st.Load(t.Context(), rec.GetVm(), transition.Asked{Operation: "closed", PendingDeletions: true})
	judge("load", err, proto.Equal(now.Record, rec) && now.Named.GetId() == "closed" && len(now.PendingDeletions) == 1)
	all, err := st.List(t.Context(), "", 0)
	judge("list", err, len(all) == 1 && proto.Equal(all[0], rec))
	found, err := st.Find(t.Context(), rootstore.Which{Node: "a", Deleter: "a"})
	judge("find", errors.Join(err, rootstore.UnreadOf(found.Unread)), len(found.Records) == 1 &&
		found.HasDeletions != nil && *found.HasDeletions)
	op, err := st.Operation(t.Context(), "closed")
	judge("operation", err, op.GetId() == "closed")
	owed, err := st.PendingDeletions(t.Context(), rootstore.WhichDeletions{Deleter: "a"})
	judge("deletions", err, len(owed) == 1)
}

// reopen opens the store that was opened last as another process does.
func reopen(t *testing.T) *store.Store {
	t.Helper()
	st, err := store.Open(server.REST(), currentNamespace())
	if err != nil {
		t.Fatal(err)
	}
	return st
}
