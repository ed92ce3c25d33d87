package moves

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// headless is a store without a quorum, once it is away.
type headless struct {
	*storetest.Memory
	away atomic.Bool
}

func (h *headless) NoteNew(ctx context.Context, kind, key string, value []byte) error {
	if h.away.Load() {
		return errdefs.ErrUnavailable
	}
	return h.Memory.NoteNew(ctx, kind, key, value)
}

// While the store is out of reach, the events of moves wait for it one after the other. No order and no heartbeat waits
// in their row for longer than its own event may take, however many come at once.
func TestNoEventWaitsForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &headless{Memory: storetest.NewMemory()}
		members, err := cluster.Open(t.Context(), st, false)
		if err != nil {
			t.Fatal(err)
		}
		vm := &nodev1.VM{Namespace: "default", Id: "web"}
		s := &Service{Self: "a", Cluster: members, Records: controller.New(st)}
		rec, err := s.Records.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vm})
		if err != nil {
			t.Fatal(err)
		}
		st.away.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { // the journal
			for ctx.Err() == nil {
				bound, end := context.WithTimeout(ctx, writeTimeout)
				_ = members.Append(bound, &nodev1.MoveEvent{Type: moves.Retrying, Vm: vm, Operation: "m"})
				end()
			}
		}()
		synctest.Wait()
		begun, took := time.Now(), make(chan time.Duration, 9)
		for range 2 {
			for _, node := range []string{"b", "c"} {
				go func() {
					if err := s.noCapacity(ctx, node, rec, "", nil); !errdefs.IsResourceExhausted(err) {
						t.Errorf("an order: %v", err)
					}
					took <- time.Since(begun)
				}()
				go func() {
					_, err := s.Announce(controller.WithPeer(ctx, node), &nodev1.AnnounceRequest{Node: &nodev1.NodeInfo{Name: node},
						Events: []*nodev1.MoveEvent{{Type: moves.Outlived, Vm: vm, Reason: "x"}}})
					if !errors.Is(err, context.DeadlineExceeded) && !errdefs.IsUnavailable(err) {
						t.Errorf("a heartbeat: %v", err)
					}
					took <- time.Since(begun)
				}()
			}
		}
		for range cap(took) - 1 {
			if d := <-took; d > tellWait {
				t.Errorf("answered after %v", d)
			}
		}
		if n, err := members.Node("b"); err != nil || !n.GetUp() {
			t.Errorf("the heartbeat does not count: %v, %v", n, err)
		}
	})
}
