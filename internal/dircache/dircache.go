// Package dircache keeps on a node what can be made again, each entry in a directory of its
// own, within bounds. Many processes share a cache. An entry that is leased is not evicted,
// and the others go in the order in which they were used, the longest ago first.
//
//	<name>/    an entry, in hexadecimal digits. It has its name when the disk has all of it.
//	           The time of its directory is that of its last use
//	.<x>       what is being made or removed; what a crash has left of that goes with the next eviction
//	lock       of the process that evicts
//
// Other names in the directory are the caller's own.
package dircache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/filelock"
)

const (
	lockFile = "lock"
	passing  = "." // begins what is being made or removed
)

var entryName = regexp.MustCompile(`^[0-9a-f]{16,128}$`)

// Cache is the directory. Nothing is made there before the first entry.
type Cache struct{ Dir string }

// Path of an entry, or of a file in it.
func (c Cache) Path(elem ...string) string {
	return filepath.Join(append([]string{c.Dir}, elem...)...)
}

// Lock keeps other processes from evicting until the file is closed. Unavailable while
// another process has it.
func (c Cache) Lock() (*os.File, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock %s: %w", c.Dir, err)
	}
	f, err := os.OpenFile(c.Path(lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", c.Dir, err)
	}
	if err := filelock.Lock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: another process has it: %w: %w", c.Dir, err, errdefs.ErrUnavailable),
			f.Close())
	}
	return f, nil
}

// Lease keeps an entry from being evicted. It ends with the process at the latest.
type Lease struct {
	Dir  string // of the entry
	file *os.File
}

// Close ends the lease.
func (l *Lease) Close() error { return l.file.Close() }

// Use leases an entry and notes its use. NotFound: there is none of that name.
func (c Cache) Use(name string) (*Lease, error) {
	path := c.Path(name)
	f, err := locked(path, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EWOULDBLOCK) { // at this moment it is evicted
		return nil, fmt.Errorf("use %s: %w: %w", path, err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("use %s: %w", path, err)
	}
	c.touch(name)
	return &Lease{Dir: path, file: f}, nil
}

// touch notes a use. That it cannot be noted costs the entry its place in the order only.
func (c Cache) touch(name string) {
	now := time.Now()
	_ = os.Chtimes(c.Path(name), now, now)
}

// locked opens a directory and locks it. ErrNotExist: it is not there, or went meanwhile.
func locked(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	err = filelock.Lock(f, how)
	if err == nil {
		err = filelock.Same(f, path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
