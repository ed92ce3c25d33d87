//go:build integration

package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
)

// journal is what the shim's durable word on its VM tells an observer.
type journal struct {
	Phase     string
	Unplugged bool
	Waking    bool
	Armed     bool
	Filling   *struct{ Digest string }
	Shim      struct{ PID int }
	Process   struct{ PID int }
}

// note reads the journal of the VM on a node; none is the zero one.
func note(n *harness.Node, vm string) (j journal) {
	data, err := os.ReadFile(filepath.Join(n.Dir, "lib", "vms", "default", vm, "node.json"))
	if err == nil {
		_ = json.Unmarshal(data, &j) // it is replaced whole: what is there parses
	}
	return j
}

// inside lists the host's pids of a node's processes.
func inside(n *harness.Node) (pids []int, err error) {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", n.PID()))
	if err != nil {
		return nil, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if ns, err := os.Readlink(filepath.Join(dir, "ns", "pid")); err == nil && ns == own {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids, err
}

var errGone = errors.New("it is gone")

// hostPID finds the process that the node knows as pid. One that all of the node's processes
// are not is errGone.
func hostPID(n *harness.Node, pid int) (int, error) {
	all, err := inside(n)
	if err != nil {
		return 0, err
	}
	for _, host := range all {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", host))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(status), "\nNSpid:")
		line, _, _ := strings.Cut(rest, "\n")
		if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] == strconv.Itoa(pid) {
			return host, nil
		}
	}
	return 0, fmt.Errorf("find process %d on node %s: %w", pid, n.Name, errGone)
}

// workerPID finds the one worker of the node.
func workerPID(n *harness.Node) (int, error) {
	all, err := inside(n)
	if err != nil {
		return 0, err
	}
	for _, pid := range all {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if args := strings.Split(string(line), "\x00"); err == nil && slices.Contains(args, "worker") {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("find the worker on node %s: none runs", n.Name)
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

// freeze holds a process so that even SIGSTOP does not reach it, in the way of the
// host's version of cgroups; the answer lets it go on.
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
		err := errors.Join(os.WriteFile(filepath.Join(dir, name), []byte(thawed), 0), move(home))
		return errors.Join(err, os.Remove(dir))
	}
	if err := move(dir); err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	return thaw, os.WriteFile(filepath.Join(dir, name), []byte(frozen), 0)
}
