package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// signals are those that a traced process has stopped for and not been given. The tracer
// keeps them while the process is in its hands, and hands them over before it lets go.
type signals []unix.Signal

// add notes one. Of those that are the same one counts, and the last of SIGSTOP and
// SIGCONT comes last, as the kernel has it.
func (s *signals) add(signal unix.Signal) {
	*s = append(slices.DeleteFunc(*s, func(o unix.Signal) bool { return o == signal }), signal)
}

// untilTrap waits until the process stops for its tracer.
func (s *signals) untilTrap(pid int) error {
	for {
		status, err := stopped(pid)
		if err != nil || status.StopSignal() == unix.SIGTRAP {
			return err
		}
		s.add(status.StopSignal())
		if err := unix.PtraceCont(pid, 0); err != nil {
			return err
		}
	}
}

// deliver sends them to the process while it is stopped: it meets them before anything
// else. A SIGCONT that has come meanwhile waits in the kernel, and is later than a SIGSTOP
// here, which would throw it away.
func (s *signals) deliver(pid, pidfd int) error {
	for _, signal := range *s {
		if signal == unix.SIGSTOP {
			later, err := pending(pid, unix.SIGCONT)
			if err != nil {
				return fmt.Errorf("deliver signal %s: %w: %w", signal, errdefs.ErrUnavailable, err)
			}
			if later {
				continue
			}
		}
		if err := unix.PidfdSendSignal(pidfd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("deliver signal %s: %w: %w", signal, errdefs.ErrInternal, err)
		}
	}
	*s = nil
	return nil
}

// pending reports whether a signal was sent to the process and has not been met.
func pending(pid int, signal unix.Signal) (bool, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false, err
	}
	_, rest, _ := bytes.Cut(status, []byte("\nShdPnd:\t"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	set, err := strconv.ParseUint(string(line), 16, 64)
	return err == nil && set&(1<<(signal-1)) != 0, err
}
