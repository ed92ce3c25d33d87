package restore

import (
	"context"
	"time"
)

// longestReport is for how long it is told that a VM that wakes wants nothing now: as long as a VMM
// may take to load a state, and more.
const longestReport = 10 * time.Second

// awaitIdle returns when the rest of the pages may come.
func (l *postcopy) awaitIdle(ctx context.Context) error {
	tick := time.NewTicker(l.patience.Idle / 8)
	defer tick.Stop()
	end := time.NewTimer(l.patience.LongestIdle)
	defer end.Stop()
	for !l.idle(l.patience.Idle) {
		select {
		case <-tick.C:
		case <-end.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// reportIdle tells each time that the VM has wanted nothing for a moment, for as long as somebody may
// wait to hear that: it may not run yet.
func (l *postcopy) reportIdle(ctx context.Context) {
	moment := l.patience.Idle / 8
	tick := time.NewTicker(moment)
	defer tick.Stop()
	end := time.NewTimer(longestReport)
	defer end.Stop()
	for {
		select {
		case <-tick.C:
			if l.idle(moment) {
				l.f.notify(Progress{Step: "lazy fill", Done: l.f.done.Load(), Total: l.f.total, Settled: true})
			}
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// idle reports whether the VM has wanted something, has it, and has wanted nothing more for so long.
func (l *postcopy) idle(long time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.busy) == 0 && !l.wanted.IsZero() && time.Since(l.wanted) >= long
}
