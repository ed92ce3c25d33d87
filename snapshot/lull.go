package snapshot

import (
	"context"
	"time"
)

// How long a VM that wakes has to want nothing until the rest of its RAM comes, and how long that waits
// at most: it takes cores and network from what the VM waits for. Variables for the tests.
var (
	lazyLull    = 200 * time.Millisecond
	longestLull = time.Second
)

// longestSettling is for how long it is told that a VM that wakes wants nothing now: as long as a VMM
// may take to load a state, and more.
const longestSettling = 10 * time.Second

// lull returns when the rest of the pages may come.
func (l *lazy) lull(ctx context.Context) error {
	tick := time.NewTicker(lazyLull / 8)
	defer tick.Stop()
	end := time.NewTimer(longestLull)
	defer end.Stop()
	for !l.calm(lazyLull) {
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
func (l *lazy) settling(ctx context.Context) {
	moment := lazyLull / 8
	tick := time.NewTicker(moment)
	defer tick.Stop()
	end := time.NewTimer(longestSettling)
	defer end.Stop()
	for {
		select {
		case <-tick.C:
			if l.calm(moment) {
				l.notify(Progress{Step: "lazy fill", Done: l.done.Load(), Total: l.total, Settled: true})
			}
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// calm reports whether the VM has wanted something, has it, and has wanted nothing more for so long.
func (l *lazy) calm(long time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.busy) == 0 && !l.wanted.IsZero() && time.Since(l.wanted) >= long
}
