package shim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// slowStats is a guest that answers after a while, or at once with err.
type slowStats struct {
	after time.Duration
	err   error
	asked int
}

func (g *slowStats) Stats(ctx context.Context, _ *agentv1.StatsRequest) (*agentv1.StatsResponse, error) {
	g.asked++
	select {
	case <-time.After(g.after):
		return &agentv1.StatsResponse{MemoryCurrent: uint64(g.asked)}, g.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A guest that lets a caller wait is waited for once, by the bound; it is asked one question at a
// time. When it has answered, the next caller gets figures of now.
func TestStatsCacheOfASlowGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g := new(statsCache), &slowStats{after: 3 * statsBound}
		begun := time.Now()
		for range 3 {
			if r := c.get(t.Context(), t.Context(), g); r != nil {
				t.Errorf("figures %v of a guest that has not answered", r)
			}
		}
		synctest.Wait()
		if took := time.Since(begun); took != statsBound || g.asked != 1 {
			t.Errorf("the callers waited %v, the guest was asked %d times", took, g.asked)
		}
		time.Sleep(g.after)
		synctest.Wait()
		g.after = 0
		if r := c.get(t.Context(), t.Context(), g); r.GetMemoryCurrent() != 2 {
			t.Errorf("figures %v, not those of the second question", r)
		}
	})
}

// A guest that does not answer leaves the figures as they were.
func TestStatsCacheKeepsTheLastFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g := new(statsCache), new(slowStats)
		c.refresh(t.Context(), g)
		g.err = errors.New("no")
		c.refresh(t.Context(), g)
		if r := c.get(t.Context(), t.Context(), g); r.GetMemoryCurrent() != 1 || c.cached() != r {
			t.Errorf("figures %v, %v", r, c.cached())
		}
	})
}
