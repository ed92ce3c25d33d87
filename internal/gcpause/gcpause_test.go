package gcpause

import (
	"syscall"
	"testing"
	"time"
)

// slept counts how often this process has gone to sleep by itself.
func slept(t *testing.T) int64 {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return int64(u.Nvcsw)
}

// A process in which nothing happens but that this test sleeps now and again wakes up by
// itself, much more often than the test does.
func TestKeep(t *testing.T) {
	const own, most = 100, 1000
	before := slept(t)
	Keep(time.Millisecond)
	for range own {
		time.Sleep(100 * time.Millisecond)
		if slept(t)-before > most {
			return
		}
	}
	t.Errorf("went to sleep %d times in 10000 beats", slept(t)-before)
}
