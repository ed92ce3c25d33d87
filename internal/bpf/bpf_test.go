package bpf

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A signal, as Go's runtime sends itself, does not keep a program from being loaded. Whatever else fails does.
func TestSignalInterruptsNoLoad(t *testing.T) {
	calls := 0
	fd, err := uninterrupted(func() (int, error) {
		if calls++; calls < 4 {
			return -1, unix.EAGAIN
		}
		return 7, nil
	})
	if fd != 7 || err != nil || calls != 4 {
		t.Errorf("%d, %v after %d calls", fd, err, calls)
	}
	for errno, want := range map[unix.Errno]int{unix.EPERM: 1, unix.EAGAIN: loadTries} {
		calls = 0
		if _, err := uninterrupted(func() (int, error) { calls++; return -1, errno }); err != errno || calls != want {
			t.Errorf("%v: %v after %d calls, want %d", errno, err, calls, want)
		}
	}
}
