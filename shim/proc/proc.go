// Package proc names processes so that a reused pid is never taken for them, and ends
// them.
package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ID of a process: its pid, and its start time since the boot of the host.
type ID struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"`
}

// Find names a process that runs now.
func Find(pid int) (ID, error) {
	now, err := stat(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ID{}, fmt.Errorf("find process %d: %w", pid, err)
	}
	return ID{PID: pid, StartTime: now.start}, nil
}

// status of a process, or of one of its threads.
type status struct {
	start   uint64
	state   byte // its letter; of a process that of its first thread
	threads int  // of the process; a zombie whose threads have all ended has one
}

func stat(path string) (status, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return status{}, err
	}
	// The command, in parentheses, may hold anything.
	_, rest, ok := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return status{}, fmt.Errorf("%s: short line", path)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return status{}, err
	}
	threads, err := strconv.Atoi(fields[17])
	return status{start, fields[0][0], threads}, err
}

// open answers a pidfd; ErrProcessDone if the process is gone or the pid is another's.
func (id ID) open() (int, error) {
	if id.PID <= 0 {
		return -1, os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err == unix.ESRCH {
		return -1, os.ErrProcessDone
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", id.PID, err)
	}
	// The pid cannot be reused from here on; it might have been before.
	now, err := Find(id.PID)
	if err != nil || now != id {
		unix.Close(fd)
		return -1, os.ErrProcessDone
	}
	return fd, nil
}

// Alive reports whether the process exists and any of its threads may still do something: the
// first one is a zombie from its end on, while another one waits for a disk, say.
func (id ID) Alive() bool {
	now, err := stat(filepath.Join("/proc", strconv.Itoa(id.PID), "stat"))
	ended := now.state == 'X' || now.state == 'Z' && now.threads <= 1
	return err == nil && now.start == id.StartTime && !ended
}

// Signal sends sig. A process that is gone is os.ErrProcessDone.
func (id ID) Signal(sig unix.Signal) error {
	fd, err := id.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err == unix.ESRCH {
		return os.ErrProcessDone
	} else if err != nil {
		return fmt.Errorf("signal process %d: %w", id.PID, err)
	}
	return nil
}

// Kill ends the process and returns when it is gone. Killing what is gone succeeds.
func (id ID) Kill(ctx context.Context) error {
	fd, err := id.open()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	for {
		// A pidfd turns readable at the end of the process.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
		if n > 0 || !id.Alive() {
			return nil
		}
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for process %d: %w", id.PID, err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for process %d: %w", id.PID, ctx.Err())
		}
	}
}

// Wait returns when the process is gone, or with an error when ctx ends. It costs no
// thread, however many are waited for.
func (id ID) Wait(ctx context.Context) error {
	fd, err := id.open()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil { // for the runtime's poller
		return errors.Join(fmt.Errorf("wait for process %d: %w", id.PID, err), unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer file.Close()
	defer context.AfterFunc(ctx, func() { file.Close() })()
	raw, err := file.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 && err == nil
		})
	}
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", id.PID, errors.Join(err, ctx.Err()))
	}
	return nil
}

// Pauses between two looks whether a process stands, which is soon.
const (
	stopMin = 50 * time.Microsecond
	stopMax = time.Millisecond
)

// Stop sends SIGSTOP and returns when every thread is stopped: from then on the process
// executes nothing.
func (id ID) Stop(ctx context.Context) error {
	if err := id.Signal(unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", id.PID, err)
	}
	for pause := stopMin; ; pause = min(2*pause, stopMax) {
		stopped, err := id.stopped()
		if err != nil {
			return fmt.Errorf("stop process %d: %w", id.PID, err)
		}
		if stopped {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stop process %d: %w", id.PID, ctx.Err())
		case <-time.After(pause):
		}
	}
}

func (id ID) stopped() (bool, error) {
	if now, err := Find(id.PID); err != nil || now != id {
		return false, os.ErrProcessDone
	}
	tasks, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(id.PID), "task", "*", "stat"))
	if err != nil {
		return false, err
	}
	for _, t := range tasks {
		now, err := stat(t)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return false, err
		}
		if now.state != 'T' && now.state != 't' {
			return false, nil
		}
	}
	return len(tasks) > 0, nil
}

// Continue undoes Stop.
func (id ID) Continue() error { return id.Signal(unix.SIGCONT) }
