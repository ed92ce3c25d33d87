//go:build integration

package store_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	etcd "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Records of a build before that are changed while the index is made anew are found by it. That
// holds though the process that changed them wrote no entry that did not change.
func TestEtcdReindexWhileRecordsChange(t *testing.T) {
	st, raw := storeAndEtcd(t)
	const records = 256
	vm := func(i int) *nodev1.VM { return &nodev1.VM{Namespace: "ns", Id: fmt.Sprintf("v%03d", i)} }
	for i := range records {
		value, err := proto.Marshal(&nodev1.Record{Vm: vm(i), Uid: fmt.Sprint("u", i), Owner: &nodev1.Owner{Node: "n1"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Put(t.Context(), "/godwit/records/ns\x00"+vm(i).GetId(), string(value)); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var group sync.WaitGroup
	for from := range 4 {
		group.Go(func() {
			for i := from; ; i = (i + 4) % records {
				select {
				case <-stop:
					return
				default:
				}
				state, err := st.Load(t.Context(), vm(i), transition.Asked{})
				if err == nil {
					state.Record.Home = "n1"
					_, err = st.Apply(t.Context(), vm(i), state.Record.GetVersion(), transition.Change{Record: state.Record})
				}
				if err != nil && !errdefs.IsConflict(err) {
					t.Error(err)
					return
				}
			}
		})
	}
	err := st.Reindex(t.Context(), true)
	close(stop)
	group.Wait()
	if err != nil {
		t.Fatal(err)
	}
	for _, which := range []store.Which{{Node: "n1"}, {UIDs: uids(records)}} {
		all, err := st.Find(t.Context(), which)
		if err != nil || len(all.Records) != records {
			t.Errorf("found %d of %d records: %v", len(all.Records), records, err)
		}
	}
}

// storeAndEtcd is a store on an etcd of its own, and a client that goes past the store.
func storeAndEtcd(t *testing.T) (*store.Etcd, *etcd.Client) {
	t.Helper()
	members := newCluster(t, 1)
	st := connect(t, "/godwit/", members)
	raw, err := etcd.New(etcd.Config{Endpoints: urls(members)})
	if err != nil {
		st.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close(); st.Close() })
	return st, raw
}

func uids(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint("u", i))
	}
	return all
}

// An index that is whole is read again without a write for each record. What lacks an entry, and
// an entry that nothing should have, cost their own write alone.
func TestEtcdReindexWritesWhatIsMissing(t *testing.T) {
	st, raw := storeAndEtcd(t)
	const records = 200
	for i := range records {
		vm := &nodev1.VM{Namespace: "ns", Id: fmt.Sprintf("v%03d", i)}
		rec := &nodev1.Record{Vm: vm, Uid: fmt.Sprint("u", i), Owner: &nodev1.Owner{Node: "n1"}}
		if _, err := st.Apply(t.Context(), vm, 0, transition.Change{Record: rec}); err != nil {
			t.Fatal(err)
		}
	}
	again := func() (writes int64) {
		t.Helper()
		before, err := raw.Get(t.Context(), "/godwit/indexed")
		if err == nil {
			err = st.Reindex(t.Context(), false)
		}
		if err == nil {
			err = st.Reindex(t.Context(), true)
		}
		if err != nil {
			t.Fatal(err)
		}
		after, err := raw.Get(t.Context(), "/godwit/indexed")
		if err != nil {
			t.Fatal(err)
		}
		return after.Header.Revision - before.Header.Revision
	}
	again()
	if n := again(); n != 2 { // that it is not read, and that it is
		t.Errorf("%d writes of an index that is whole", n)
	}
	entries, err := raw.Get(t.Context(), "/godwit/index/", etcd.WithPrefix())
	if err != nil || len(entries.Kvs) < 2*records {
		t.Fatalf("%d entries, %v", len(entries.Kvs), err)
	}
	if _, err := raw.Delete(t.Context(), string(entries.Kvs[7].Key)); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Put(t.Context(), string(entries.Kvs[8].Key)+"x", string(entries.Kvs[8].Value)); err != nil {
		t.Fatal(err)
	}
	if n := again(); n < 3 || n > 4 {
		t.Errorf("%d writes for one entry that is missing and one too many", n)
	}
	now, err := raw.Get(t.Context(), "/godwit/index/", etcd.WithPrefix())
	if err != nil || len(now.Kvs) != len(entries.Kvs) || string(now.Kvs[7].Key) != string(entries.Kvs[7].Key) {
		t.Errorf("%d entries of %d: %v", len(now.Kvs), len(entries.Kvs), err)
	}
	all, err := st.Find(t.Context(), store.Which{Node: "n1"})
	if err != nil || len(all.Records) != records {
		t.Errorf("found %d of %d records: %v", len(all.Records), records, err)
	}
}
