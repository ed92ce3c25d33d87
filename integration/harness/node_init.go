package harness

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// holderEnv tells a program that imports this package to become the first process of a
// node instead of running its main. Its value names the node's cgroups.
const holderEnv = "GODWIT_HARNESS_HOLDER"

// The node's first process is this very program, started again: no other binary has to
// be built or found, in tests and in the demo alike.
func init() {
	name := os.Getenv(holderEnv)
	if name == "" {
		return
	}
	if err := hold(name); err != nil {
		fmt.Fprintln(os.Stderr, "holder:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// hold is process 1 of a node: it makes the private mounts, says so, reaps what is
// orphaned, and ends with its stdin. The kernel then kills whatever else lives in the
// node, so nothing survives the harness, however that one dies.
func hold(name string) error {
	if err := privateMounts(); err != nil {
		return err
	}
	if err := ownCgroups(name); err != nil {
		return err
	}
	fmt.Println("ready")
	go reap()
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// reap takes whatever is orphaned to this process, to any of its threads; without a
// child it looks again a little later.
func reap() {
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(-1, &status, 0, nil); errors.Is(err, unix.ECHILD) {
			ts := unix.Timespec{Nsec: 20e6}
			_ = unix.Nanosleep(&ts, nil)
		}
	}
}

// privateMounts gives the node its own /proc and /run, and private copies of what
// container tools write below /etc, /opt and /var.
func privateMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, dir := range []string{"/etc", "/opt", "/var"} {
		upper, work := filepath.Join("/run/.private", dir, "upper"), filepath.Join("/run/.private", dir, "work")
		for _, d := range []string{upper, work} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount("overlay", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+upper+",workdir="+work); err != nil {
			return fmt.Errorf("mount private %s: %w", dir, err)
		}
	}
	return nil
}

// nodeInit is a started first process and the namespaces it keeps.
type nodeInit struct {
	name  string // of its cgroups
	cmd   *exec.Cmd
	stdin io.Closer
	ns    []*os.File // in the order they are entered
}

// Like: unshare --net --mount --pid --ipc --cgroup --fork
func startNodeInit(name string) (_ *nodeInit, err error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), holderEnv+"="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID |
		unix.CLONE_NEWIPC,
		Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start node (root needed): %w", err)
	}
	h := &nodeInit{name: name, cmd: cmd, stdin: stdin}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		return nil, fmt.Errorf("start node: it says %q: %w", line, err)
	}
	for _, name := range []string{"pid", "ipc", "net", "cgroup", "mnt"} {
		f, err := os.Open(h.proc("ns", name))
		if err != nil {
			return nil, err
		}
		h.ns = append(h.ns, f)
	}
	return h, nil
}

func (h *nodeInit) pid() int { return h.cmd.Process.Pid }

// proc is a path below the holder's directory in this process' own /proc.
func (h *nodeInit) proc(elem ...string) string {
	return filepath.Join(append([]string{"/proc", fmt.Sprint(h.pid())}, elem...)...)
}

// enter calls f on a thread inside the node; processes started and sockets opened there
// belong to it. The thread is thrown away after.
func (h *nodeInit) enter(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("unshare thread: %w", err)
			}
			for _, ns := range h.ns {
				if err := unix.Setns(int(ns.Fd()), 0); err != nil {
					return fmt.Errorf("enter %s: %w", ns.Name(), err)
				}
			}
			return f()
		}()
	}()
	return <-done
}

// close ends the node with all its processes.
func (h *nodeInit) close() error {
	for _, f := range h.ns {
		f.Close()
	}
	h.stdin.Close()
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait() // process 1 is gone only after all others
	return removeCgroups(h.name)
}
