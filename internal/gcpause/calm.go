package gcpause

import (
	"runtime/debug"
	"sync"
	"time"
)

var calm struct {
	mu      sync.Mutex
	until   time.Time
	percent int
	on      bool
}

// Calm puts garbage collections off for so long: somebody waits for this process alone, as
// for a VM that stands still, and it allocates little meanwhile. Of calls that overlap the
// latest end counts.
func Calm(long time.Duration) {
	calm.mu.Lock()
	defer calm.mu.Unlock()
	if until := time.Now().Add(long); until.After(calm.until) {
		calm.until = until
	}
	if calm.on {
		return
	}
	calm.percent, calm.on = debug.SetGCPercent(-1), true
	time.AfterFunc(long, collect)
}

// collect has garbage collected again, unless that has been put off further.
func collect() {
	calm.mu.Lock()
	defer calm.mu.Unlock()
	if left := time.Until(calm.until); left > 0 {
		time.AfterFunc(left, collect)
		return
	}
	debug.SetGCPercent(calm.percent)
	calm.on, calm.until = false, time.Time{}
}
