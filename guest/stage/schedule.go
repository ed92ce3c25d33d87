package stage

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Policies of the kernel's scheduler.
const (
	Normal = unix.SCHED_NORMAL
	Batch  = unix.SCHED_BATCH
)

// Schedule sets the policy of a thread; 0 is the caller's own. A thread that has ended
// needs none.
func Schedule(tid int, policy uint32) error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy}
	if err := unix.SchedSetAttr(tid, &attr, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("set scheduling policy: %w", err)
	}
	return nil
}

// usualSlack is how late the timers of a program may come, in nanoseconds: what Linux gives to its first process
// (INIT_TASK in init/init_task.c).
const usualSlack = 50_000

// usualTimers gives the calling thread the timers of any program, which what it starts inherits. Some threads of the
// agent have slower ones: see initd.
func usualTimers() error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, usualSlack, 0, 0, 0); err != nil {
		return fmt.Errorf("set timer slack: %w", err)
	}
	return nil
}
