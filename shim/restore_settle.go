package shim

import (
	"context"
	"time"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/steps"
)

// A VM that wakes lazily is left alone until it has wanted no page for a moment, at most so long: what
// its agent is asked brings pages and translated code of its own in between those that the workload
// waits for. Variables for the tests.
var (
	idleMoment   = 25 * time.Millisecond
	longestDefer = 200 * time.Millisecond
)

// A pod whose volumes are kept fresh is not: its workload would go on with what they held when it went to sleep.
func (s *starting) deferAgent(ctx context.Context, _ *steps.Undo) error {
	if len(s.vm.pod.synced()) > 0 {
		return nil
	}
	if f := s.vm.postcopy.filling(); f != nil {
		f.awaitIdle(ctx)
		return nil
	}
	// After a live move each page is mapped at its first use. The workload comes first, for as long as this host and VMM
	// took to load the state. A guest that has addresses to learn does not talk before.
	if a := s.vm.origin.arrival; a != nil && !s.readdress && !s.plugs {
		retry.Sleep(ctx, min(a.loading, longestDefer))
	}
	return nil
}

// noteIdle notes that the VM wants nothing now.
func (f *filling) noteIdle() {
	select {
	case f.idle <- time.Now():
	default:
	}
}

// awaitIdle returns once a VM that was just resumed wants nothing for a moment, or after longestDefer.
func (f *filling) awaitIdle(ctx context.Context) {
	end := time.NewTimer(longestDefer)
	defer end.Stop()
	for soonest := time.Now().Add(idleMoment); ; {
		select {
		case at := <-f.idle:
			if at.Before(soonest) {
				continue // that was before it ran
			}
		case <-end.C:
		case <-f.here:
		case <-f.over:
		case <-ctx.Done():
		}
		return
	}
}
