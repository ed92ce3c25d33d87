// Package filelock takes locks of files that other processes honour, by flock(2). They end with the
// file, and with the process that has it open.
package filelock

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Lock takes the lock of an open file: how is LOCK_SH or LOCK_EX, with LOCK_NB for a try, which answers
// EWOULDBLOCK where another process has it. A signal that comes meanwhile ends no wait.
func Lock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Same fails with ErrNotExist if the open file is no longer the one at path: its lock is of no use then.
func Same(f *os.File, path string) error {
	open, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(open, there) {
		return fs.ErrNotExist
	}
	return nil
}
