package moves

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// controllerStub counts heartbeats.
type controllerStub struct{ signs atomic.Int64 }

func (b *controllerStub) Announce(context.Context, *nodev1.AnnounceRequest) (*nodev1.AnnounceResponse, error) {
	return &nodev1.AnnounceResponse{AgainMs: 5000, Incarnation: uint64(b.signs.Add(1))}, nil
}

// slow is a node that takes its time over each answer.
type slow struct {
	takes time.Duration
	heard []uint64
}

func (*slow) Self() *nodev1.NodeInfo      { return &nodev1.NodeInfo{Name: "n1"} }
func (*slow) Untold() []*nodev1.MoveEvent { return nil }
func (*slow) Told(int)                    {}
func (s *slow) Heard(ctx context.Context, resp *nodev1.AnnounceResponse) error {
	s.heard = append(s.heard, resp.GetIncarnation())
	select {
	case <-ctx.Done():
	case <-time.After(s.takes):
	}
	return ctx.Err()
}

// A node may need long for what an answer asks for, such as a report or the settling of all records. It goes on
// telling that it lives, and hears the newest answer after that.
func TestSignsOfLifeWaitForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 61*time.Second)
		defer cancel()
		b, n := &controllerStub{}, &slow{takes: 32 * time.Second}
		Live(ctx, b, n)
		if got := b.signs.Load(); got != 13 {
			t.Errorf("%d heartbeats in a minute, want 13", got)
		}
		if len(n.heard) != 2 || n.heard[0] != 1 || n.heard[1] != 7 {
			t.Errorf("it heard answers %v, want the first, and the newest after 32 s", n.heard)
		}
	})
}

// late is a controller that refuses each heartbeat until then.
type late struct {
	controllerStub
	until time.Time
	tried []time.Time
}

func (l *late) Announce(ctx context.Context, req *nodev1.AnnounceRequest) (*nodev1.AnnounceResponse, error) {
	l.tried = append(l.tried, time.Now())
	if time.Now().Before(l.until) {
		return nil, errdefs.ErrUnavailable
	}
	return l.controllerStub.Announce(ctx, req)
}

// A node whose first heartbeat failed gives the next one within a second or so. While the controller stays away,
// it gives no more of them than at other times.
func TestSignsOfLifeComeBackSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, away := range []time.Duration{400 * time.Millisecond, time.Minute} {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			begun := time.Now()
			b := &late{until: begun.Add(away)}
			Live(ctx, b, &slow{})
			cancel()
			failed := 0
			for b.tried[failed].Before(b.until) {
				failed++
			}
			if after := b.tried[failed].Sub(b.until); after > away/2+1600*time.Millisecond || after > 8*time.Second {
				t.Errorf("away for %v: heard %v later", away, after)
			}
			if failed > 20 {
				t.Errorf("away for %v: %d tries", away, failed)
			}
		}
	})
}
