package record

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// controllers answer a dial after so long, or refuse it at once (negative).
type controllers map[string]time.Duration

type made struct {
	net.Conn
	address string
	closed  *atomic.Int64
}

func (m *made) Close() error {
	m.closed.Add(1)
	return nil
}

// A controller that is slow is waited for while the others are tried. One that refuses, or
// hangs, costs a part of the time. Of several connections one stays.
func TestReach(t *testing.T) {
	const never = time.Hour
	for _, c := range []struct {
		name         string
		takes        controllers
		want         string
		after        time.Duration
		dialsAtLeast int64
		closed       int64
	}{
		{"the first is there", controllers{"a": 0, "b": 0, "c": 0}, "a", 0, 1, 0},
		{"the first is slow, and the others hang", controllers{"a": 5 * time.Second, "b": never, "c": never}, "a",
			5 * time.Second, 3, 0},
		{"the first hangs", controllers{"a": never, "b": 0, "c": 0}, "b", 2 * time.Second, 2, 0},
		{"the first refuses", controllers{"a": -1, "b": time.Second, "c": 0}, "b", time.Second, 2, 0},
		{"all are slow", controllers{"a": 5 * time.Second, "b": 4 * time.Second, "c": 3 * time.Second}, "a", 5 * time.Second,
			3, 0},
		{"two at the same time", controllers{"a": 4 * time.Second, "b": 2 * time.Second, "c": never}, "", 4 * time.Second, 2,
			1},
		{"none answers", controllers{"a": never, "b": -1, "c": never}, "", 6 * time.Second, 3, 0},
		{"all refuse", controllers{"a": -1, "b": -1, "c": -1}, "", 0, 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
				defer cancel()
				begun := time.Now()
				var dials, closed atomic.Int64
				conn, err := reach(ctx, []string{"a", "b", "c"}, func(ctx context.Context, address string) (net.Conn, error) {
					dials.Add(1)
					if c.takes[address] < 0 {
						return nil, net.ErrClosed
					}
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(c.takes[address]):
						return &made{address: address, closed: &closed}, nil
					}
				})
				got := ""
				if m, ok := conn.(*made); ok {
					got = m.address
				}
				if got != c.want && c.closed == 0 || (err == nil) != (c.want != "" || c.closed > 0) ||
					time.Since(begun) != c.after || dials.Load() < c.dialsAtLeast {
					t.Errorf("reached %q after %v in %d dials: %v; want %q after %v", got, time.Since(begun), dials.Load(), err,
						c.want, c.after)
				}
				if c.name == "none answers" && (!errors.Is(err, net.ErrClosed) || !errors.Is(err, context.DeadlineExceeded)) {
					t.Errorf("what went wrong is not told: %v", err)
				}
				cancel()
				synctest.Wait()
				if closed.Load() != c.closed {
					t.Errorf("%d connections were closed, want %d", closed.Load(), c.closed)
				}
			})
		})
	}
}
