package snapshot

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// weighed notes the most memory that is in use when something is stored.
type weighed struct {
	store.Store
	mu   sync.Mutex
	most uint64
}

func (w *weighed) Put(ctx context.Context, o store.Object, c store.Content) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&now)
	w.most = max(w.most, now.HeapAlloc)
	return w.Store.Put(ctx, o, c)
}

// What a push takes in addition to its buffers grows with the pages that it stores. It is no more than a VM's
// cgroup grants for them. Measured are a first push, and one all of whose pages are others than its parent's and
// whose next table is made. How many buffers are in use at a Put is the scheduler's: on a busy host one measurement
// may have more of them than another, which a second one shows.
func TestPageCost(t *testing.T) {
	if raced {
		t.Skip("the race detector has memory of its own: without it in make integration")
	}
	var wrong []string
	for range 3 {
		if wrong = dearPages(t); len(wrong) == 0 {
			return
		}
		t.Log(wrong)
	}
	t.Errorf("three times: %v", wrong)
}

// dearPages answers the pushes whose pages take more than they may.
func dearPages(t *testing.T) (wrong []string) {
	const small, large = 48, 240 // MiB
	most := map[string]map[int]uint64{"first": {}, "second": {}}
	for _, mib := range []int{small, large} {
		w := wide(t, mib)
		var parent *Table
		var before runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i, which := range []string{"first", "second"} {
			w.src.Spaces[0].File = noise(t, mib, byte(i))
			st := &weighed{Store: w.st}
			w.opts.Ref.Operation, w.opts.Memory, w.opts.Parent = which, 2*format.PackSize, parent
			w.opts.Next, w.opts.Finished, w.opts.Repository = emptyFile(t, "next"), emptyFile(t, "finished"), "repo/uid1"
			receipt, err := Push(t.Context(), st, w.src, w.opts)
			if err != nil {
				t.Fatal(err)
			}
			if receipt.Figures.New < uint64(mib)<<20 {
				t.Fatalf("%d bytes are new", receipt.Figures.New)
			}
			most[which][mib] = st.most - min(st.most, before.HeapAlloc)
			if parent, err = OpenTable(w.opts.Next); err != nil {
				t.Fatal(err)
			}
		}
	}
	for which, at := range most {
		page := (at[large] - min(at[large], at[small])) / ((large - small) << 20 / format.PageSize)
		// Main has the collector wait until half as much has become garbage.
		if page == 0 || page*3/2 > PageCost {
			wrong = append(wrong, fmt.Sprintf("%s: %d bytes a page, and half of that is garbage; granted are %d", which, page,
				PageCost))
		}
		t.Logf("%s: %d MiB of %d, %d of %d: %d bytes a page", which, at[small]>>20, small, at[large]>>20, large, page)
	}
	return wrong
}
