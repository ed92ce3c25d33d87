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

// note reads the journal of the VM on a node; none is the zero one.
func note(n *harness.Node, vm string) harness.Journal { return n.Journal(vm) }

// hostPID finds the process that the node knows as pid.
func hostPID(n *harness.Node, pid int) (int, error) { return n.HostPID(pid) }

// workerPID finds the one worker of the node.
func workerPID(n *harness.Node) (int, error) {
	all, err := n.Workers()
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("find the worker on node %s: none runs", n.Name)
	}
	if err != nil {
		return 0, err
	}
	return all[0], nil
}

// kill ends a process of which another is the parent, and returns when it executes
// nothing any more.
func kill(ctx context.Context, pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return harness.Poll(ctx, stopBound, func(context.Context) error {
		state, err := state(pid)
		if err == nil && state != 'Z' && state != 'X' {
			return fmt.Errorf("process %d is still %c", pid, state)
		}
		return nil
	})
}

func state(pid int) (byte, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
	return strings.Fields(rest)[0][0], nil
}

// stop holds a process where it is; the answer lets it go on, if it is still there.
func stop(ctx context.Context, pid int) (resume func(), err error) {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return nil, fmt.Errorf("stop process %d: %w", pid, err)
	}
	resume = func() { _ = unix.Kill(pid, unix.SIGCONT) }
	return resume, harness.Poll(ctx, stopBound, func(context.Context) error {
		state, err := state(pid)
		if err == nil && state != 'T' {
			err = fmt.Errorf("process %d is %c, not stopped", pid, state)
		}
		return err
	})
}

// freeze holds a process so that even SIGSTOP does not reach it, in the way of the host's version of cgroups. The
// answer lets it go on.
func freeze(pid int) (thaw func() error, err error) {
	const v1 = "/sys/fs/cgroup/freezer"
	home, name, frozen, thawed := v1, "freezer.state", "FROZEN", "THAWED"
	if _, err := os.Stat(v1); err != nil {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			return nil, err
		}
		_, path, _ := strings.Cut(strings.TrimSpace(string(data)), "0::")
		home, name, frozen, thawed = filepath.Join("/sys/fs/cgroup", path), "cgroup.freeze", "1", "0"
	}
	// One of its own: the VMM shares that of its task with the shim and the worker.
	dir := filepath.Join(home, fmt.Sprintf("godwit-crash-%d", pid))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	move := func(to string) error {
		return os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	}
	thaw = func() error {
		err := os.WriteFile(filepath.Join(dir, name), []byte(thawed), 0)
		if merr := move(home); !errors.Is(merr, unix.ESRCH) { // one that was killed while it was frozen ends now
			err = errors.Join(err, merr)
		}
		return errors.Join(err, harness.Poll(context.Background(), stepBound, func(context.Context) error {
			return os.Remove(dir) // busy, until that one has ended
		}))
	}
	if err := move(dir); err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	return thaw, os.WriteFile(filepath.Join(dir, name), []byte(frozen), 0)
}
