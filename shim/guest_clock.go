package shim

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/retry"
)

// The wall clock of a VM that stands still does so too. It is late when the VM goes on. Its agent sets it forward then,
// as a part of the VM's traffic, and after everything that a caller waits for. A wake tells the time in Restored
// first, which a slow guest may execute late.

const (
	// clockTries is how often the guest is told the time after one stop, if it takes longer than clockSlack to answer: the
	// time that it was told is late by that much then.
	clockTries = 3
	clockSlack = 10 * time.Millisecond
)

// clockedGuest is the guest whose clock is set.
type clockedGuest interface {
	guest() Agent // nil: no agent was met yet
	pausedByClient() bool
}

// guestClock sets the wall clock of a guest that has stood still.
type guestClock struct {
	of    clockedGuest
	log   *slog.Logger
	stood chan struct{} // holds one entry: the VM has stood still, and its clock is late

	mu     sync.Mutex
	failed string // how the last try to set it went wrong
}

func newGuestClock(of clockedGuest, log *slog.Logger) *guestClock {
	return &guestClock{of: of, log: log, stood: make(chan struct{}, 1)}
}

// noteResumed says that the VM goes on that did not. Who lets its traffic flow hears of it.
func (c *guestClock) noteResumed() {
	select {
	case c.stood <- struct{}{}:
	default: // it is said already
	}
}

// keep sets the guest's clock whenever the VM has stood still.
func (c *guestClock) keep(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.stood:
		}
		for c.of.guest() == nil && ctx.Err() == nil { // an adopted VM may have yet to meet it
			retry.Sleep(ctx, retryWait)
		}
		c.set(ctx)
	}
}

// set tells the guest the time until it has heard of it soon. A pause or an operation that comes in between tells it
// again after its own end.
func (c *guestClock) set(ctx context.Context) {
	var err error
	for range clockTries {
		if ctx.Err() != nil || c.of.pausedByClient() {
			return
		}
		bound, cancel := context.WithTimeout(ctx, guestBound)
		begun := time.Now()
		var r *agentv1.SetClockResponse
		r, err = c.of.guest().SetClock(bound, &agentv1.SetClockRequest{UnixNano: begun.UnixNano()})
		cancel()
		if by := time.Duration(r.GetBehindNano()); by > 0 {
			c.log.Info("the guest's clock was set forward", "by", by)
		}
		if errdefs.IsNotImplemented(err) || err == nil && time.Since(begun) <= clockSlack {
			break
		}
	}
	if ctx.Err() == nil {
		c.note(err)
	}
}

// note logs what went wrong, once if it is the same each time.
func (c *guestClock) note(err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	c.mu.Lock()
	known := c.failed == said
	c.failed = said
	c.mu.Unlock()
	switch {
	case known || err == nil:
	case errdefs.IsNotImplemented(err):
		c.log.Info("the guest is of an earlier build: its clock is late by the time that it stands still")
	default:
		c.log.Warn("set the guest's clock; it is tried again after the next stop", "error", err)
	}
}
