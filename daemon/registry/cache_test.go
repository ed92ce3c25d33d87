package registry

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// fleet are the records of one VM among many.
type fleet struct {
	nodev1.RecordsService
	uid   string
	err   error
	lists int
}

func (f *fleet) List(context.Context, *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	f.lists++
	return &nodev1.ListResponse{Records: []*nodev1.Record{{Uid: f.uid}}}, f.err
}

// What a node keeps of a VM is deleted only if no record names that VM. The records of all VMs
// are not asked for in each round.
func TestCacheForgetsVMs(t *testing.T) {
	t.Run("VM", func(t *testing.T) { testCacheForgets(t, "") })
	t.Run("member of a set", func(t *testing.T) { testCacheForgets(t, ".main") })
}

func testCacheForgets(t *testing.T, member string) {
	r := ofNode(t, storetest.Start(t, &storetest.Registry{}))
	r.Cache = cache.Open(t.TempDir(), 1<<30)
	f := &fleet{uid: uuid.NewString() + member, err: errdefs.ErrUnavailable}
	mine := r.Repository(&nodev1.Record{Uid: f.uid})
	for _, repository := range []string{mine, r.Repository(&nodev1.Record{Uid: uuid.NewString() + member})} {
		lease, err := r.Cache.Join(repository, "")
		if err != nil {
			t.Fatal(err)
		}
		lease.Close()
	}
	if err := r.MaintainCache(t.Context(), f); !errdefs.IsUnavailable(err) {
		t.Errorf("no records: %v", err)
	}
	if kept, err := r.Cache.Repositories(); err != nil || len(kept) != 2 {
		t.Errorf("no records: %v is kept, %v", kept, err)
	}
	f.err = nil
	for range 3 {
		if err := r.MaintainCache(t.Context(), f); err != nil {
			t.Error(err)
		}
	}
	if kept, err := r.Cache.Repositories(); err != nil || len(kept) != 1 || kept[0] != mine || f.lists != 2 {
		t.Errorf("%v is kept, %v, after %d lists", kept, err, f.lists)
	}
}
