package proc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

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

// stopped reports whether every thread stands. A thread that cannot be looked at may run.
func (id ID) stopped() (bool, error) {
	switch now, err := id.inspect(); {
	case err != nil:
		return false, err
	case now.ended():
		return false, os.ErrProcessDone
	}
	dir := filepath.Join("/proc", strconv.Itoa(id.PID), "task")
	tasks, err := os.ReadDir(dir)
	if Missing(err) {
		return false, os.ErrProcessDone
	}
	if err != nil {
		return false, unknown(id.PID, err)
	}
	seen := 0
	for _, t := range tasks {
		now, err := stat(filepath.Join(dir, t.Name(), "stat"))
		if Missing(err) {
			continue // the thread has ended
		}
		if err != nil {
			return false, unknown(id.PID, err)
		}
		if now.state != 'T' && now.state != 't' {
			return false, nil
		}
		seen++
	}
	return seen > 0, nil
}

// Continue undoes Stop.
func (id ID) Continue() error { return id.Signal(unix.SIGCONT) }
