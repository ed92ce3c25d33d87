// Package process starts and holds the processes that run VMs. They get everything as descriptors, live in sessions of
// their own and run on when the process that started them ends. A pidfd holds them, so that a reused pid is never taken
// for one.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// A process that meets no room for a page of its RAM's file gets SIGBUS.
const (
	BusError = 128 + int(unix.SIGBUS)
	NoRoom   = "VMM killed by SIGBUS: there is no room left for its RAM (ram_size)"
)

// Process is a VMM, ours or an adopted one, held by a pidfd: the pid may be reused, the
// descriptor always means this process.
type Process struct {
	PID       int
	StartTime uint64 // field 22 of /proc/PID/stat
	Boot      string // of the host, as Boot names it
	// Userfault is the number of its userfaultfd, in the process itself; 0: it has none, and
	// Untracked says why if one was wanted.
	Userfault int
	Untracked error

	pidfd *os.File // non-blocking, so that waiting costs no thread
}

// Adopt holds the process of that pid. NotFound if it is gone, and if the pid belongs to
// one that was started at another time, or in another boot; empty: the boot is not known, and
// the caller has seen that the process is the one that is meant.
func Adopt(pid int, start uint64, boot string) (*Process, error) {
	p, err := Hold(pid)
	if err != nil {
		return nil, err
	}
	if p.StartTime != start || boot != "" && p.Boot != boot {
		return nil, errors.Join(fmt.Errorf("pid %d belongs to another process now: %w", pid, errdefs.ErrNotFound), p.Close())
	}
	return p, nil
}

// reap ends a child that is known only here yet. It may have been waited for already, and its pid be another's by now,
// which the pidfd is not.
func reap(pidfd int) error {
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); errors.Is(err, unix.ESRCH) {
		return nil
	} else if err != nil {
		return err
	}
	if err := unix.SetNonblock(pidfd, false); err != nil {
		return err
	}
	// somebody waits for every child of this process
	if _, err := await(pidfd, 0); err != nil && !errors.Is(err, unix.ECHILD) {
		return err
	}
	return nil
}

func closePidfd(fd int) error {
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}

// Hold holds the process that has that pid now. NotFound says that there is none, Unavailable that it
// cannot be looked at.
func Hold(pid int) (*Process, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w: %w", pid, class(err), err)
	}
	p, err := hold(pid, pidfd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(pidfd))
	}
	return p, nil
}

// hold takes over pidfd unless it fails.
func hold(pid, pidfd int) (*Process, error) {
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	boot, err := Boot()
	if err != nil {
		return nil, err
	}
	start, err := startTime(pid)
	if err != nil {
		return nil, err
	}
	return &Process{PID: pid, StartTime: start, Boot: boot, pidfd: os.NewFile(uintptr(pidfd), "pidfd")}, nil
}

// class of what the kernel says of a process: only that there is none says that it is gone. EINVAL is
// of a pid that a thread of another process has.
func class(err error) error {
	for _, gone := range []error{unix.ESRCH, unix.ENOENT, unix.EINVAL} {
		if errors.Is(err, gone) {
			return errdefs.ErrNotFound
		}
	}
	return errdefs.ErrUnavailable
}

// startTime is field 22 of /proc/PID/stat. The name, field 2, may hold anything.
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read start time of %d: %w: %w", pid, class(err), err)
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("read start time of %d: %q: %w", pid, data, errdefs.ErrInternal)
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}

// Wait returns when the process is gone, or with an error when p was closed.
func (p *Process) Wait() error {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 && err == nil
	})
}

// Kill sends SIGKILL; the process may be gone already.
func (p *Process) Kill() error {
	_, err := Control(p.pidfd, func(fd int) (struct{}, error) {
		return struct{}{}, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	})
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return nil
}

// Status reaps the process that Wait has seen end. It is -1 when the process is not our
// child, or when somebody waits for every child of this one, as shims do.
func (p *Process) Status() int {
	status, err := Control(p.pidfd, func(fd int) (int, error) { return await(fd, unix.WNOHANG) })
	if err != nil {
		return -1
	}
	return status
}

// Gone waits for the end of the process within ctx.
func (p *Process) Gone(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- p.Wait() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("process %d does not end: %w", p.PID, ctx.Err())
	}
}

// Close lets go of the process. A Wait that is going on returns an error.
func (p *Process) Close() error { return p.pidfd.Close() }

// End kills the process and waits for done, which its waiter closes when the process is gone and cleaned up after.
func (p *Process) End(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	if err := p.Kill(); err != nil {
		return fmt.Errorf("kill VM: %w", err)
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill VM: process %d does not end: %w", p.PID, ctx.Err())
	}
}
