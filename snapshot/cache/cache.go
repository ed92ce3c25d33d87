// Package cache keeps on a node what it has seen of snapshots: packs above all, so that a
// wake on the node that hibernated reads nothing from the network. What lies here is what
// lies in the store, byte for byte, sealed where that is sealed. Nothing of it is trusted:
// who reads it compares digests, and what does not match is fetched.
//
//	<key>/repository   whose name gives the key
//	<key>/lock         shared by who uses the repository, for oneself by who deletes
//	<key>/blobs/       the objects; all that a worker can reach
//	usage              what it was good for
//	lock               one process at a time evicts
package cache

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/filelock"
)

// Cache is a directory that many processes share.
type Cache struct {
	dir string
	max int64
}

// Open returns the cache in dir, with at most max bytes; 0: it keeps nothing, and gives up
// what it has. Nothing is made yet.
func Open(dir string, max int64) *Cache { return &Cache{dir: dir, max: max} }

func (c *Cache) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

// key of a repository: its name may be longer than a file's.
func key(repository string) string {
	sum := sha256.Sum256([]byte(repository))
	return hex.EncodeToString(sum[:16])
}

// Names within the directory of a repository.
const (
	nameFile = "repository"
	lockFile = "lock"
	blobs    = "blobs"
)

// Lease keeps what is there of a repository from being evicted while a job uses it. It
// dies with the process. The one of a cache that keeps nothing is nil.
type Lease struct {
	Dir    string // of the objects
	Shared string // of those that the repository shares with others; empty: none are kept
	lock   *os.File
	shared *Lease
}

// Join takes a lease. A process that deletes is waited for: that takes no time. The second
// repository holds what others have in common. What is kept of it may be read with the first.
func (c *Cache) Join(repository, beside string) (*Lease, error) {
	if c == nil || c.max <= 0 {
		return nil, nil
	}
	l, err := c.join(repository)
	if err != nil || beside == "" || beside == repository {
		return l, err
	}
	if _, err := os.Stat(c.path(key(beside))); err != nil {
		return l, nil // nothing is made there for nothing
	}
	if l.shared, err = c.join(beside); err != nil {
		l.Close()
		return nil, err
	}
	l.Shared = l.shared.Dir
	return l, nil
}

// mostJoins bounds how often a directory is made again that others delete meanwhile.
const mostJoins = 100

func (c *Cache) join(repository string) (*Lease, error) {
	k := key(repository)
	for range mostJoins {
		err := os.MkdirAll(c.path(k, blobs), 0o700)
		var f *os.File
		if err == nil {
			f, err = c.locked(k, unix.LOCK_SH)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
			continue // deleted at this moment, also between two steps of MkdirAll
		}
		if err == nil {
			err = c.sign(k, repository)
		}
		if err != nil {
			if f != nil {
				f.Close()
			}
			return nil, fmt.Errorf("join cache: %w", err)
		}
		return &Lease{Dir: c.path(k, blobs), lock: f}, nil
	}
	return nil, fmt.Errorf("join cache: %s is deleted again and again: %w", c.path(k), unix.EBUSY)
}

// Close ends the lease.
func (l *Lease) Close() {
	if l != nil {
		l.lock.Close()
		l.shared.Close()
	}
}

// sign writes down whose directory it is.
func (c *Cache) sign(k, repository string) error {
	path := c.path(k, nameFile)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	tmp := path + "." + rand.Text() // several may join at once
	if err := os.WriteFile(tmp, []byte(repository), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// locked takes the lock of a repository's directory. ErrNotExist: the directory was deleted
// meanwhile; EWOULDBLOCK: somebody has it, of a try.
func (c *Cache) locked(k string, how int) (*os.File, error) {
	path := c.path(k, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err = filelock.Lock(f, how); err == nil {
		err = filelock.Same(f, path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// gone begins the names of directories that are being deleted.
const gone = "gone-"

// delete ends the directory of a repository whose lock one has. Its name goes first: who
// joins meanwhile makes another one. What a crash leaves, the next eviction deletes.
func (c *Cache) delete(k string) error {
	path := c.path(gone + rand.Text())
	if err := os.Rename(c.path(k), path); err != nil {
		return err
	}
	return empty(path)
}

// lateFiles bounds how often a directory that was renamed is emptied again.
const lateFiles = 100

// empty removes a directory that was renamed. Another process that had found it under its old name
// can still make a file in it, once: the flag of a full cache, or a lock file.
func empty(path string) (err error) {
	for range lateFiles {
		if err = os.RemoveAll(path); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return err
}
