package client

import (
	"context"
	"strings"
	"time"
)

// A kernel that panics ends its VM. One that does so before it knows that it shall, or
// before it knows how, stops: its console is then all that tells.
const (
	panicLine = "Kernel panic - not syncing"
	panicLook = 250 * time.Millisecond
	panicEnd  = 2 * time.Second // what the VM has to end by itself
)

// watchPanic calls give with errPanicked if the console shows a panic and the VM does not
// end, until ctx does.
func watchPanic(ctx context.Context, console string, give context.CancelCauseFunc) {
	tick := time.NewTicker(panicLook)
	defer tick.Stop()
	var seen time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			switch {
			case seen.IsZero() && strings.Contains(tail(console), panicLine):
				seen = now
			case !seen.IsZero() && now.Sub(seen) > panicEnd:
				give(errPanicked)
				return
			}
		}
	}
}
