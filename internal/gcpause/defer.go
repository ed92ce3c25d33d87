package gcpause

import (
	"runtime/debug"
	"sync"
	"time"
)

var deferred struct {
	mu      sync.Mutex
	until   time.Time
	percent int
	on      bool
}

// Defer puts garbage collections off for so long: a caller waits for this process alone, as
// for a VM that stands still, and it allocates little meanwhile. Of calls that overlap the
// latest end counts.
func Defer(long time.Duration) {
	deferred.mu.Lock()
	defer deferred.mu.Unlock()
	if until := time.Now().Add(long); until.After(deferred.until) {
		deferred.until = until
	}
	if deferred.on {
		return
	}
	deferred.percent, deferred.on = debug.SetGCPercent(-1), true
	time.AfterFunc(long, collect)
}

// collect has garbage collected again, unless that has been put off further.
func collect() {
	deferred.mu.Lock()
	defer deferred.mu.Unlock()
	if left := time.Until(deferred.until); left > 0 {
		time.AfterFunc(left, collect)
		return
	}
	debug.SetGCPercent(deferred.percent)
	deferred.on, deferred.until = false, time.Time{}
}
