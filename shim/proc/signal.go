package proc

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// open answers a pidfd; os.ErrProcessDone if the process is proved to be gone, ErrUnknown if
// that cannot be told.
func (id ID) open() (int, error) {
	fd, err := id.openAny()
	if errors.Is(err, errNoBoot) {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, err
}

// openAny is open that answers errNoBoot together with a pidfd.
func (id ID) openAny() (int, error) {
	if id.PID <= 0 {
		return -1, os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err == unix.ESRCH {
		return -1, os.ErrProcessDone
	}
	if err != nil { // also of a pid that is a thread's of another process by now
		if _, gone := id.inspect(); errors.Is(gone, os.ErrProcessDone) {
			return -1, gone
		}
		return -1, unknown(id.PID, err)
	}
	// The pid cannot be reused from here on; it might have been before.
	_, err = id.inspect()
	if err != nil && !errors.Is(err, errNoBoot) {
		unix.Close(fd)
		return -1, err
	}
	return fd, err
}

// Signal sends sig. A process that is gone is os.ErrProcessDone. One of which it cannot be told
// whether it lives gets nothing.
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

// Kill ends the process and returns nil when it is proved to be gone. Killing what is gone
// succeeds.
func (id ID) Kill(ctx context.Context) error {
	fd, err := id.open()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	for {
		// A pidfd turns readable at the end of the process.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
		if n > 0 {
			return nil
		}
		if alive, unknown := id.Alive(); !alive && unknown == nil {
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

// Wait returns nil when the process is gone, or with an error when ctx ends or that cannot be
// told. It costs no thread, however many are waited for. Of an ID without a boot it waits for
// any process that has its pid and start time.
func (id ID) Wait(ctx context.Context) error {
	fd, err := id.openAny()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil && !errors.Is(err, errNoBoot) {
		return fmt.Errorf("wait: %w", err)
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
