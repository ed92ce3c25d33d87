//go:build integration

package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	etcd "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// An index that a controller of a build before has written past is not read, and is made anew once
// that controller is gone: what it moved, made and ended is found as it is.
func TestEtcdIndexAfterABuildBefore(t *testing.T) {
	st, raw := storeAndEtcd(t)
	put := func(id, node string) {
		t.Helper()
		vm := &nodev1.VM{Namespace: "ns", Id: id}
		value, err := proto.Marshal(&nodev1.Record{Vm: vm, Uid: "u" + id, Owner: &nodev1.Owner{Node: node}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Put(t.Context(), "/godwit/records/ns\x00"+id, string(value)); err != nil {
			t.Fatal(err)
		}
	}
	reindex := func(all bool) {
		t.Helper()
		if err := st.Reindex(t.Context(), all); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "n1")
	storetest.Found(t, st, store.Which{Node: "n1"}, "a") // without an index
	reindex(true)
	storetest.Found(t, st, store.Which{Node: "n1"}, "a")
	put("b", "n1")
	put("a", "n2")
	storetest.Found(t, st, store.Which{Node: "n1"}) // it shows that the index is read
	reindex(false)
	storetest.Found(t, st, store.Which{Node: "n1"}, "b")
	if _, err := raw.Delete(t.Context(), "/godwit/records/ns\x00b"); err != nil {
		t.Fatal(err)
	}
	put("c", "n1")
	reindex(true)
	storetest.Found(t, st, store.Which{Node: "n1"}, "c")
	storetest.Found(t, st, store.Which{Node: "n2"}, "a")
	left, err := raw.Get(t.Context(), "/godwit/index/", etcd.WithPrefix())
	if err != nil || len(left.Kvs) != 4 {
		t.Errorf("%d entries, want one of a node and one of a uid for each of two records: %v", len(left.Kvs), err)
	}
	state, err := st.Load(t.Context(), &nodev1.VM{Namespace: "ns", Id: "c"}, transition.Asked{})
	if err != nil {
		t.Fatal(err)
	}
	state.Record.Owner.Node = "n3"
	if _, err := st.Apply(t.Context(), state.Record.GetVm(), state.Record.GetVersion(),
		transition.Change{Record: state.Record}); err != nil {
		t.Fatal(err)
	}
	storetest.Found(t, st, store.Which{Node: "n1"})
	storetest.Found(t, st, store.Which{Node: "n3"}, "c")
}

// An etcd that is not compacted is told of once it is half full, and one that refuses changes as
// such.
func TestEtcdSpace(t *testing.T) {
	// Each write is counted at once, or the last of them may fill it between two looks.
	small := newCluster(t, 1, "--quota-backend-bytes", "8388608", "--backend-batch-limit", "1")
	st := connect(t, "/godwit/", small)
	defer st.Close()
	if said, err := st.Space(t.Context()); err != nil || !strings.Contains(said, "never compacted") {
		t.Errorf("empty: %q, %v", said, err)
	}
	warned := false
	for i := range 64 {
		err := st.Note(t.Context(), "big", fmt.Sprint(i), make([]byte, 1<<18))
		_, space := st.Space(t.Context())
		switch {
		case err == nil && errdefs.IsFailedPrecondition(space):
			warned = true
		case errdefs.IsResourceExhausted(err):
			if !warned || !errdefs.IsResourceExhausted(space) {
				t.Errorf("full: %v; warned before: %t", space, warned)
			}
			return
		case err != nil:
			t.Fatal(err)
		}
	}
	t.Error("it never was full")
}
