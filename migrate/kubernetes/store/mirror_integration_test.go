//go:build integration

package store_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/store"
	rootstore "godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// followed is a store that is told of each change, until stop.
func followed(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) (st *store.Store, stop func()) {
	t.Helper()
	st, _ = open(t, wrap)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); st.Follow(ctx) }()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return st, stop
}

// What is cached is what Find answers, and no request is made for it.
func TestFindCached(t *testing.T) {
	asked := &requests{}
	st, _ := followed(t, asked.wrap)
	if _, ok := st.FindCached(rootstore.Which{Node: "a"}); ok {
		t.Error("an answer before anything was read")
	}
	which := rootstore.Which{Node: "a", Deleter: "a"}
	same := func() (bool, error) {
		want, err := st.Find(t.Context(), which)
		if err != nil {
			return false, err
		}
		asked.mu.Lock()
		n := len(asked.all)
		asked.mu.Unlock()
		got, ok := st.FindCached(which)
		asked.mu.Lock()
		defer asked.mu.Unlock()
		is := ok && len(asked.all) == n && len(got.Records) == len(want.Records) && *got.HasDeletions == *want.HasDeletions &&
			proto.Equal(got.State, want.State)
		for i := range min(len(got.Records), len(want.Records)) {
			is = is && proto.Equal(got.Records[i], want.Records[i])
		}
		return is, fmt.Errorf("%v, want %v", got, want)
	}
	apitest.Eventually(t, "nothing is there", same)
	made := map[string]*nodev1.Record{}
	for _, id := range []string{"default.b", "default.a", "default.c"} {
		rec := &nodev1.Record{Vm: vm(id), Uid: "u-" + id, Owner: &nodev1.Owner{Node: "a"}}
		if id == "default.c" {
			rec.Owner.Node = "elsewhere"
		}
		var err error
		if made[id], err = st.Apply(t.Context(), vm(id), 0, transition.Change{Record: rec}); err != nil {
			t.Fatal(err)
		}
	}
	apitest.Eventually(t, "records were made", same)
	got, ok := st.FindCached(which)
	if !ok || len(got.Records) != 2 || !proto.Equal(got.Records[0].GetVm(), vm("default.a")) {
		t.Errorf("%v, %v", got, ok)
	}
	owed := &nodev1.Owed{Vm: vm("default.a"), Snapshot: &nodev1.SnapshotRef{Repository: "r", Digest: "d"}, Payer: "a"}
	if _, err := st.Apply(t.Context(), vm("default.a"), made["default.a"].GetVersion(), transition.Change{
		PendingDeletions: []*nodev1.Owed{owed}}); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "a record was removed, and a deletion is left", same)
	if _, err := st.SetState(t.Context(), 0, &nodev1.StoreState{Incarnation: 1_800_000_000}); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "the store has another state", same)
}

// A node's round takes what is cached, and asks where nothing is: never is an answer that is old or not whole taken for
// an empty one.
func TestNothingCachedIsAsked(t *testing.T) {
	broken := &faults{seen: map[fault]int{}, pick: func(*http.Request) fault { return none }}
	st, stop := followed(t, func(next http.RoundTripper) http.RoundTripper { broken.next = next; return broken })
	if _, err := st.Apply(t.Context(), vm("default.a"), 0, transition.Change{Record: &nodev1.Record{Vm: vm("default.a"),
		Owner: &nodev1.Owner{Node: "a"}}}); err != nil {
		t.Fatal(err)
	}
	svc := controller.New(st)
	list := func() int {
		resp, err := svc.List(t.Context(), &nodev1.ListRequest{Node: "a", Cached: true})
		if err != nil {
			t.Fatal(err)
		}
		return len(resp.GetRecords())
	}
	cached := func() bool { _, ok := st.FindCached(rootstore.Which{Node: "a"}); return ok }
	apitest.Eventually(t, "the record is cached", func() (bool, error) {
		found, ok := st.FindCached(rootstore.Which{Node: "a"})
		return ok && len(found.Records) == 1, nil
	})
	stop()
	apitest.Eventually(t, "nothing is believed once the watch has ended", func() (bool, error) { return !cached(), nil })
	if n := list(); n != 1 {
		t.Errorf("%d records while nothing is cached", n)
	}
	broken.mu.Lock()
	broken.pick = func(req *http.Request) fault {
		if req.URL.Query().Get("watch") != "" {
			return failed
		}
		return none
	}
	broken.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	again := make(chan struct{})
	go func() { defer close(again); st.Follow(ctx) }()
	<-again
	if cached() {
		t.Error("a list without a watch is believed")
	}
	if n := list(); n != 1 {
		t.Errorf("%d records while no watch can be made", n)
	}
}
