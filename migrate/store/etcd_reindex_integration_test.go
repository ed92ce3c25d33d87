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

// Records of a build before that are changed while the index is made anew are found by it, though
// who changed them wrote no entry that did not change.
func TestEtcdReindexWhileRecordsChange(t *testing.T) {
	members := newCluster(t, 1)
	st := connect(t, "/godwit/", members)
	defer st.Close()
	raw, err := etcd.New(etcd.Config{Endpoints: urls(members)})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
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
	err = st.Reindex(t.Context(), true)
	close(stop)
	group.Wait()
	if err != nil {
		t.Fatal(err)
	}
	for _, which := range []store.Which{{Node: "n1"}, {UIDs: uids(records)}} {
		all, err := st.Find(t.Context(), which)
		if err != nil || len(all) != records {
			t.Errorf("found %d of %d records: %v", len(all), records, err)
		}
	}
}

func uids(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint("u", i))
	}
	return all
}
