package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// process is QEMU, ours or an adopted one, held by a pidfd: the pid may be reused, the
// descriptor always means this process.
type process struct {
	pid   int
	start uint64
	pidfd *os.File // non-blocking, so that waiting costs no thread
}

// launch describes how QEMU is started.
type launch struct {
	args   []string
	env    []string
	fds    []int
	log    *os.File
	netns  string
	cgroup []string
}

// start runs QEMU on a thread that enters the network namespace and is thrown away. The
// process has its own session and no death signal: it outlives the shim.
func (l launch) start() (*process, error) {
	type result struct {
		p   *process
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		p, err := l.startHere()
		done <- result{p, err}
	}()
	r := <-done
	return r.p, r.err
}

func (l launch) startHere() (*process, error) {
	if l.netns != "" {
		if err := enter(l.netns); err != nil {
			return nil, fmt.Errorf("enter network namespace %s: %w", l.netns, err)
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{Env: l.env, Files: []uintptr{null.Fd(), l.log.Fd(), l.log.Fd()}}
	for _, fd := range l.fds {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	pidfd := -1
	// Traced, it stops at the exec: a moment before its first allocation to put it into
	// its cgroups, of version 1 or 2.
	attr.Sys = &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd, Ptrace: len(l.cgroup) > 0}
	pid, err := syscall.ForkExec(l.args[0], l.args, attr)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w: %w", l.args[0], errdefs.ErrFailedPrecondition, err)
	}
	if err := l.join(pid); err != nil {
		return nil, errors.Join(err, reap(pid), closePidfd(pidfd))
	}
	p, err := hold(pid, pidfd)
	if err != nil {
		return nil, errors.Join(err, reap(pid))
	}
	return p, nil
}

func enter(netns string) error {
	ns, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrFailedPrecondition, err)
	}
	return nil
}

// join puts the process, stopped at its exec, into the cgroups and lets it go.
func (l launch) join(pid int) error {
	if len(l.cgroup) == 0 {
		return nil
	}
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		if err == nil && status.Stopped() {
			break
		}
		if err != nil && !errors.Is(err, unix.EINTR) || err == nil {
			return fmt.Errorf("wait for exec: status %#x: %w", status, errors.Join(errdefs.ErrInternal, err))
		}
	}
	for _, dir := range l.cgroup {
		procs := filepath.Join(dir, "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0o600); err != nil {
			return fmt.Errorf("join cgroup: %w: %w", errdefs.ErrFailedPrecondition, err)
		}
	}
	if err := unix.PtraceDetach(pid); err != nil {
		return fmt.Errorf("detach: %w: %w", errdefs.ErrInternal, err)
	}
	return nil
}

// reap ends a child that nobody else knows yet.
func reap(pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return nil // somebody waits for every child of this process
		case err != nil || status.Exited() || status.Signaled():
			return err
		}
	}
}

func closePidfd(fd int) error {
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}

// hold takes over pidfd, also on error; -1 opens one.
func hold(pid, pidfd int) (*process, error) {
	var err error
	if pidfd < 0 {
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			return nil, fmt.Errorf("open process %d: %w: %w", pid, errdefs.ErrNotFound, err)
		}
	}
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("open process %d: %w", pid, err), unix.Close(pidfd))
	}
	start, err := startTime(pid)
	if err != nil {
		return nil, errors.Join(err, unix.Close(pidfd))
	}
	return &process{pid: pid, start: start, pidfd: os.NewFile(uintptr(pidfd), "pidfd")}, nil
}

// startTime is field 22 of /proc/PID/stat. The name, field 2, may hold anything.
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read start time of %d: %w: %w", pid, errdefs.ErrNotFound, err)
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("read start time of %d: %q: %w", pid, data, errdefs.ErrInternal)
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}

// wait returns when the process is gone, or with an error when p was closed.
func (p *process) wait() error {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 && err == nil
	})
}

// kill sends SIGKILL; the process may be gone already.
func (p *process) kill() error {
	_, err := control(p.pidfd, func(fd int) (struct{}, error) {
		return struct{}{}, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	})
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill process %d: %w", p.pid, err)
	}
	return nil
}

// status reaps the process that wait has seen end. It is -1 when the process is not our
// child, or when somebody waits for every child of this one, as shims do.
func (p *process) status() int {
	var status unix.WaitStatus
	for {
		pid, err := unix.Wait4(p.pid, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || pid != p.pid:
			return -1
		case status.Signaled():
			return 128 + int(status.Signal())
		case status.Exited():
			return status.ExitStatus()
		}
	}
}

// gone waits for the end of the process within ctx.
func (p *process) gone(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- p.wait() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("process %d does not end: %w", p.pid, ctx.Err())
	}
}
