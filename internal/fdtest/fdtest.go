//go:build linux

// Package fdtest takes the file descriptors of a test's process away, as a daemon that has
// reached its limit (RLIMIT_NOFILE) lacks them.
package fdtest

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// settle is how long descriptors are taken: connections of before are closed in the background.
const settle = 300 * time.Millisecond

// Exhaust leaves the process only so many descriptors that it can open. Every other open fails
// with EMFILE until the test ends, or restore is called. It holds for the whole process, so no
// test of the package may run at the same time.
func Exhaust(t *testing.T, left int) (restore func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	poll(t)
	limit := old
	limit.Cur = min(old.Cur, 1024)
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	runtime.GC() // files that other tests have left open are closed
	var taken []int
	for end := time.Now().Add(settle); time.Now().Before(end); {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			time.Sleep(settle / 100)
			continue
		}
		taken = append(taken, fd)
	}
	if len(taken) < left {
		t.Fatalf("%d descriptors could be taken, %d are to be left", len(taken), left)
	}
	for range left {
		_ = unix.Close(taken[0])
		taken = taken[1:]
	}
	done := false
	restore = func() {
		if done {
			return
		}
		done = true
		for _, fd := range taken {
			_ = unix.Close(fd)
		}
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &old, nil); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(restore)
	return restore
}

// poll has the Go runtime open what it polls with now: it does not survive that this fails.
func poll(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	_ = w.Close()
}
