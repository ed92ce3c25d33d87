package restore

import (
	"context"
	"time"
)

// longestSettling is for how long it is told that a VM that wakes wants nothing now: as long as a VMM
// may take to load a state, and more.
const longestSettling = 10 * time.Second

// This call returns when the rest of the pages may come: the VM has wanted nothing for a while.
func (l *postcopy) lull(ctx context.Context) error {
	tick := time.NewTicker(l.patience.Lull / 8)
	defer tick.Stop()
	end := time.NewTimer(l.patience.LongestLull)
	defer end.Stop()
	for !l.calm(l.patience.Lull) {
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

// settling tells each time that the VM has wanted nothing for a moment, for as long as somebody may
// wait to hear that: it may not run yet.
func (l *postcopy) settling(ctx context.Context) {
	moment := l.patience.Lull / 8
	tick := time.NewTicker(moment)
	defer tick.Stop()
	end := time.NewTimer(longestSettling)
	defer end.Stop()
	for {
		select {
		case <-tick.C:
			if l.calm(moment) {
				l.f.notify(Progress{Step: "lazy fill", Done: l.f.done.Load(), Total: l.f.total, Settled: true})
			}
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// calm reports whether the VM has wanted something, has it, and has wanted nothing more for so long.
func (l *postcopy) calm(long time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.busy) == 0 && !l.wanted.IsZero() && time.Since(l.wanted) >= long
}
