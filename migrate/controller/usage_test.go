package controller_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// long is a store that takes its time to list all records.
type long struct {
	store.Store
	lists atomic.Int64
}

func (l *long) List(ctx context.Context, after string, room int) ([]*nodev1.Record, error) {
	l.lists.Add(1)
	time.Sleep(2 * time.Second)
	return l.Store.List(ctx, after, room)
}

// However many calls of nodes ask at once how many records there are, all are listed once for them:
// calls that come together, within the quota or over it, do not fill the controller's memory.
func TestOneCountsForAll(t *testing.T) {
	for name, c := range map[string]struct {
		policy controller.Policy
		full   bool
	}{
		"within": {controller.Policy{Records: 100}, false},
		"over":   {controller.Policy{Records: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := &long{Store: storetest.NewMemory()}
				s := controller.New(st).Under(c.policy)
				ctx := controller.WithPeer(t.Context(), "src")
				if _, err := s.Ensure(ctx, &nodev1.EnsureRequest{Vm: vmOf("first")}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				st.lists.Store(0)
				var calls sync.WaitGroup
				for i := range 64 {
					calls.Go(func() {
						if _, err := s.Ensure(ctx, &nodev1.EnsureRequest{Vm: vmOf(fmt.Sprint("v", i))}); errdefs.IsResourceExhausted(
							err) != c.full || err != nil && !c.full {
							t.Errorf("v%d: %v", i, err)
						}
					})
				}
				calls.Wait()
				if n := st.lists.Load(); n != 1 {
					t.Errorf("all records were listed %d times, want once", n)
				}
			})
		})
	}
}

// Calls that come at once get no more than what is left.
func TestAtOnceWithinTheQuota(t *testing.T) {
	const most, calls = 8, 64
	for range 20 {
		s := controller.New(storetest.NewMemory()).Under(controller.Policy{Records: most})
		ctx := controller.WithPeer(t.Context(), "src")
		var made atomic.Int64
		var all sync.WaitGroup
		for i := range calls {
			all.Go(func() {
				_, err := s.Ensure(ctx, &nodev1.EnsureRequest{Vm: vmOf(fmt.Sprint("v", i))})
				if err == nil {
					made.Add(1)
				} else if !errdefs.IsResourceExhausted(err) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := made.Load(); n != most {
			t.Fatalf("%d records were made, of %d that may be", n, most)
		}
	}
}
