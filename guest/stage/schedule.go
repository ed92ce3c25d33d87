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
