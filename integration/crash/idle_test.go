//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
)

// Sockets by which the programs of a node talk to each other.
const (
	daemonSocket  = "godwitd.sock" // a shim asks its node's daemon
	machineSocket = "machine.sock" // the daemon asks a shim
)

// said waits until a process has told another one, which is stopped, over that socket what it has to tell, and is idle.
func said(ctx context.Context, pid int, socket string) error {
	err := harness.Poll(ctx, runBound, func(context.Context) error {
		waits, err := unread(pid, socket)
		if err == nil && !waits {
			err = fmt.Errorf("process %d has said nothing over %s", pid, socket)
		}
		return err
	})
	if err != nil {
		return err
	}
	return idle(ctx, pid)
}

// unread reports whether a process has sent something over a Unix socket of that name that has not been read. The
// process may be the one that listens there, or the one that has dialed.
func unread(pid int, socket string) (bool, error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false, fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(process)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return false, err
	}
	for _, f := range files {
		n, err := strconv.Atoi(f.Name())
		if err != nil {
			return false, err
		}
		fd, err := unix.PidfdGetfd(process, n, 0)
		if errors.Is(err, unix.EBADF) { // closed meanwhile
			continue
		}
		if err != nil {
			return false, fmt.Errorf("take file %d of process %d: %w", n, pid, err)
		}
		left := named(fd, socket) && queued(fd) > 0
		_ = unix.Close(fd)
		if left {
			return true, nil
		}
	}
	return false, nil
}

func named(fd int, socket string) bool {
	for _, name := range []func(int) (unix.Sockaddr, error){unix.Getsockname, unix.Getpeername} {
		if at, err := name(fd); err == nil {
			if at, ok := at.(*unix.SockaddrUnix); ok && filepath.Base(at.Name) == socket {
				return true
			}
		}
	}
	return false
}

// queued is what the other end has not read; 0 of what is no connection.
func queued(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// idleLooks in a row see a process that has nothing to do.
const idleLooks = 25

// idle waits until no thread of a process has had anything to do for a while.
func idle(ctx context.Context, pid int) error {
	calm := 0
	return harness.Poll(ctx, runBound, func(context.Context) error {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		calm++
		for _, t := range tasks {
			if data, rerr := os.ReadFile(t); rerr == nil && !strings.Contains(string(data), ") S ") {
				calm = 0
			}
		}
		if err == nil && len(tasks) == 0 {
			return fmt.Errorf("process %d is gone", pid)
		}
		if err == nil && calm < idleLooks {
			err = fmt.Errorf("process %d is at work", pid)
		}
		return err
	})
}
