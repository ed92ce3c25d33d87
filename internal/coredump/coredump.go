//go:build linux

// Package coredump keeps the memory of a program, in which there are keys or the RAM of
// guests, from the files that a crash leaves.
package coredump

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Limit makes core dumps of this program, and of all that it starts, nothing. A pattern of
// core dumps that names a program may disregard it.
func Limit() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limit core dumps: %w", err)
	}
	return nil
}

// Forbid is Limit, and says that nothing of this program's memory is to be dumped, by
// whatever pattern, nor to be looked at without CAP_SYS_PTRACE. What it starts says so by
// itself: that ends at an exec.
func Forbid() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid dumps: %w", err)
	}
	return Limit()
}
