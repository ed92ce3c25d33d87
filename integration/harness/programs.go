package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Journal is what the shim's durable word on its VM tells an observer.
type Journal struct {
	Phase          string
	Unplugged      bool
	Waking         bool
	Armed          bool
	Filling        *struct{ Digest string }
	Shim           struct{ PID int }
	SandboxProcess struct{ PID int } `json:"holder"`
	Process        struct{ PID int }
}

// Journal reads that of a VM in the namespace default; none is the zero one.
func (n *Node) Journal(vm string) (j Journal) { return n.JournalIn("default", vm) }

// JournalIn is Journal of a VM in a namespace of containerd.
func (n *Node) JournalIn(namespace, vm string) (j Journal) {
	data, err := os.ReadFile(filepath.Join(n.StateDir(), "vms", namespace, vm, "node.json"))
	if err == nil {
		_ = json.Unmarshal(data, &j) // it is replaced whole: what is there parses
	}
	return j
}

// PIDs lists the host's pids of the node's processes.
func (n *Node) PIDs() (pids []int, err error) {
	dirs, err := os.ReadDir("/proc")
	for _, dir := range dirs {
		pid, nerr := strconv.Atoi(dir.Name())
		if nerr != nil {
			continue
		}
		if n.holds(pid) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// ErrGone is a process that none of the node's processes is.
var ErrGone = errors.New("it is gone")

// HostPID finds the process that the node knows as pid.
func (n *Node) HostPID(pid int) (int, error) {
	all, err := n.PIDs()
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
		f := strings.Fields(line)
		if _, below := n.Within(host); below && len(f) > 0 {
			f = f[:len(f)-1] // what it is in its own
		}
		if len(f) > 0 && f[len(f)-1] == strconv.Itoa(pid) {
			return host, nil
		}
	}
	return 0, fmt.Errorf("find process %d on node %s: %w", pid, n.Name, ErrGone)
}

// Workers lists the processes of the node that read and write snapshots.
func (n *Node) Workers() (pids []int, err error) {
	all, err := n.PIDs()
	for _, pid := range all {
		line, rerr := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if args := strings.Split(string(line), "\x00"); rerr == nil && slices.Contains(args, "worker") {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// LimitFiles lets a process open no file beyond those of such numbers, until restore. It keeps
// what it has.
func LimitFiles(pid int, limit uint64) (restore func() error, err error) {
	var old unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		return nil, fmt.Errorf("read the limits of process %d: %w", pid, err)
	}
	less := unix.Rlimit{Cur: min(limit, old.Max), Max: old.Max}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &less, nil); err != nil {
		return nil, fmt.Errorf("limit the files of process %d: %w", pid, err)
	}
	return func() error {
		err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &old, nil)
		if errors.Is(err, unix.ESRCH) {
			err = nil
		}
		return err
	}, nil
}
