package gcpause

import (
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// percent is what GOGC is set to.
func percent() int {
	now := debug.SetGCPercent(100)
	debug.SetGCPercent(now)
	return now
}

func TestCalm(t *testing.T) {
	before := debug.SetGCPercent(70)
	defer debug.SetGCPercent(before)
	synctest.Test(t, func(t *testing.T) {
		Defer(time.Second)
		time.Sleep(800 * time.Millisecond)
		Defer(time.Second) // until 1.8 s
		Defer(time.Millisecond)
		time.Sleep(900 * time.Millisecond)
		if now := percent(); now != -1 {
			t.Errorf("garbage is collected at %d%% before the end of the latest call", now)
		}
		time.Sleep(200 * time.Millisecond)
		if now := percent(); now != 70 {
			t.Errorf("garbage is collected at %d%% after the end, at 70%% before", now)
		}
		Defer(time.Second)
		if now := percent(); now != -1 {
			t.Errorf("a later call: garbage is collected at %d%%", now)
		}
		time.Sleep(2 * time.Second)
		if now := percent(); now != 70 {
			t.Errorf("a later call: garbage is collected at %d%% after its end", now)
		}
	})
}
