package filelock

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A lock is had by one at a time. A file that was removed, or replaced, is told from the one at its path.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	first, second := open(), open()
	if err := errors.Join(Lock(first, unix.LOCK_EX), Same(first, path)); err != nil {
		t.Fatal(err)
	}
	if err := Lock(second, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("a second lock: %v", err)
	}
	if err := errors.Join(first.Close(), Lock(second, unix.LOCK_EX|unix.LOCK_NB)); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := Same(second, path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is gone: %v", err)
	}
	open()
	if err := Same(second, path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that was replaced: %v", err)
	}
}
