//go:build !linux

package archive

import (
	"os"
	"syscall"
)

// ofKernel reports whether an open file is of a file system in which the kernel shows itself: Linux has such.
func ofKernel(*os.File) (bool, error) { return false, nil }

// nonblock keeps an open from waiting for the other end of a pipe.
const nonblock = syscall.O_NONBLOCK
