package process

import (
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

// Launch describes how a VMM is started.
type Launch struct {
	Args   []string // the first one is the program's path
	Env    []string
	Out    *os.File // standard output; nil: Log
	Log    *os.File // standard error
	FDs    []int    // numbered from FirstFD on
	NetNS  string   // path; empty: the caller's
	Cgroup []string
	// NoNewPrivs keeps the process from ever gaining rights.
	NoNewPrivs bool
}

// Start runs the program on a thread that enters the network namespace and is thrown away. The
// process has its own session and no death signal: it outlives the shim.
func (l Launch) Start() (*Process, error) {
	type result struct {
		p   *Process
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

func (l Launch) startHere() (*Process, error) {
	if l.NetNS != "" {
		if err := enter(l.NetNS); err != nil {
			return nil, fmt.Errorf("enter network namespace %s: %w", l.NetNS, err)
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	out := l.Out
	if out == nil {
		out = l.Log
	}
	if l.NoNewPrivs { // of this thread, which is thrown away; inherited
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("set no new privileges: %w", err)
		}
	}
	stdout, err := descriptor(out)
	if err != nil {
		return nil, fmt.Errorf("pass standard output: %w", err)
	}
	stderr, err := descriptor(l.Log)
	if err != nil {
		return nil, fmt.Errorf("pass standard error: %w", err)
	}
	attr := &syscall.ProcAttr{Env: l.Env, Files: []uintptr{null.Fd(), stdout, stderr}}
	for _, fd := range l.FDs {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	pidfd := -1
	// Traced, it stops at the exec: a moment before its first allocation to put it into
	// its cgroups, of version 1 or 2.
	attr.Sys = &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd, Ptrace: len(l.Cgroup) > 0}
	pid, err := syscall.ForkExec(l.Args[0], l.Args, attr)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w: %w", l.Args[0], errdefs.ErrFailedPrecondition, err)
	}
	if err := l.join(pid); err != nil {
		return nil, errors.Join(err, reap(pid), closePidfd(pidfd))
	}
	p, err := Hold(pid, pidfd)
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
func (l Launch) join(pid int) error {
	if len(l.Cgroup) == 0 {
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
	for _, dir := range l.Cgroup {
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

// descriptor is the number of an open file, which stays as it is.
func descriptor(file *os.File) (uintptr, error) {
	return Control(file, func(fd int) (uintptr, error) { return uintptr(fd), nil })
}
