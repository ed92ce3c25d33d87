package dircache

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
)

// Add makes an entry: fill writes its files into an empty directory and syncs them. An entry
// of that name that is there already is replaced. After an error nothing is left.
func (c Cache) Add(name string, fill func(dir string) error) (err error) {
	if !entryName.MatchString(name) {
		return fmt.Errorf("add %q to %s: its name is not in hexadecimal digits", name, c.Dir)
	}
	work, lock, err := c.scratch()
	if err != nil {
		return fmt.Errorf("add %s to %s: %w", name, c.Dir, err)
	}
	defer lock.Close()
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(work))
		}
	}()
	if err := fill(work); err != nil {
		return err // fill says what it was about
	}
	if err := c.publish(work, name); err != nil {
		return fmt.Errorf("add %s to %s: %w", name, c.Dir, err)
	}
	return nil
}

// publish gives what is complete its name, once the disk has it.
func (c Cache) publish(work, name string) error {
	if err := durable.SyncDir(work); err != nil {
		return err
	}
	err := os.Rename(work, c.Path(name))
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		if err = c.Remove(name); err == nil {
			err = os.Rename(work, c.Path(name))
		}
	}
	if err != nil {
		return err
	}
	return durable.SyncDir(c.Dir)
}

// tries bounds how often a scratch directory is made anew that an eviction has taken for the
// leftover of a crash: it has no lock for a moment.
const tries = 10

// scratch makes a directory that is locked while its maker lives.
func (c Cache) scratch() (path string, lock *os.File, err error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return "", nil, err
	}
	for range tries {
		if path, err = os.MkdirTemp(c.Dir, passing+"new-"); err != nil {
			return "", nil, err
		}
		lock, err = locked(path, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
	}
	return path, lock, err
}

// Remove takes an entry away. Its name goes first: what is half removed is not an entry. A
// process that has leased it keeps the files that it has open. That there is none is no error.
func (c Cache) Remove(name string) error {
	gone := c.Path(passing + "gone-" + rand.Text()) // not in a directory made for it, which an eviction may clean away
	err := os.Rename(c.Path(name), gone)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.RemoveAll(gone)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", c.Path(name), err)
	}
	return nil
}
