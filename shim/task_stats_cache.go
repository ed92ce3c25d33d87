package shim

import (
	"context"
	"sync"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// statsBound is how long Stats waits for the guest; after it the last figures count.
const statsBound = time.Second

// statsSource is the guest that is asked.
type statsSource interface {
	Stats(ctx context.Context, r *agentv1.StatsRequest) (*agentv1.StatsResponse, error)
}

// statsCache has the last figures that the guest told of a task, for when it does not answer.
type statsCache struct {
	mu     sync.Mutex // guards what follows
	last   *agentv1.StatsResponse
	asking chan struct{} // closed when the guest has answered, or has not; nil: it is not being asked
	silent bool          // it let the last caller wait
	of     string        // the container in the guest, of a pod; set once
}

// cached are the last figures; nil: the guest has told none.
func (c *statsCache) cached() *agentv1.StatsResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// refresh asks the guest for figures that are not older than the call. It never fails: the guest may
// be frozen, hung or gone.
func (c *statsCache) refresh(ctx context.Context, guest statsSource) {
	ctx, cancel := context.WithTimeout(ctx, statsBound)
	defer cancel()
	if r, err := guest.Stats(ctx, &agentv1.StatsRequest{Container: c.of}); err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.last, c.silent = r, false
	}
}

// get answers figures of now if the guest answers as it should, else the last ones. One question is
// under way at a time, for all callers; it may go on for as long as life. A guest that let a caller
// wait is not waited for again until it has answered.
func (c *statsCache) get(ctx, life context.Context, guest statsSource) *agentv1.StatsResponse {
	c.mu.Lock()
	if c.asking == nil {
		c.asking = make(chan struct{})
		go c.ask(life, guest, c.asking)
	}
	answered, wait := c.asking, !c.silent
	c.mu.Unlock()
	if wait {
		bound := time.NewTimer(statsBound)
		defer bound.Stop()
		select {
		case <-answered:
		case <-bound.C:
			c.mu.Lock()
			c.silent = true
			c.mu.Unlock()
		case <-ctx.Done():
		}
	}
	return c.cached()
}

func (c *statsCache) ask(ctx context.Context, guest statsSource, answered chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, guestBound)
	defer cancel()
	r, err := guest.Stats(ctx, &agentv1.StatsRequest{Container: c.of})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = err != nil
	if err == nil {
		c.last = r
	}
	c.asking = nil
	close(answered)
}
