package stage

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A program has the timers of any program, whichever of the agent's threads has started it.
func TestUsualTimers(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 4_000_000, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := usualTimers(); err != nil {
		t.Fatal(err)
	}
	if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || slack != usualSlack {
		t.Errorf("timer slack is %d: %v", slack, err)
	}
}
