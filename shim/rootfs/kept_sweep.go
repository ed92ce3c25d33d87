package rootfs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
)

// SweepKept removes the disks below top, one directory a namespace, whose root file systems containerd has removed.
// What cannot be looked at stays.
func SweepKept(top string) {
	_ = EachKept(top, func(_, _ string, k Kept) error {
		if r, err := k.read(); err == nil && r.gone() {
			_ = k.Remove()
		}
		return nil
	})
}

// EachKept calls fn for each container that something is kept of below top, and joins its errors.
func EachKept(top string, fn func(namespace, id string, k Kept) error) error {
	namespaces, err := os.ReadDir(top)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, ns := range namespaces {
		containers, err := os.ReadDir(filepath.Join(top, ns.Name()))
		errs = append(errs, err)
		for _, c := range containers {
			k := Kept{filepath.Join(top, ns.Name(), c.Name())}
			if strings.HasPrefix(c.Name(), asidePrefix) { // a sweep was killed
				errs = append(errs, k.Remove())
				continue
			}
			errs = append(errs, fn(ns.Name(), c.Name(), k))
		}
	}
	return errors.Join(errs...)
}

// asidePrefix begins the name of what is being removed. No container has such an id.
const asidePrefix = ".gone-"

// RemoveOrphan removes what is kept of a container that is proved to be gone: absent says so of the container, and of
// any task of it. The root file system has to be gone too. Another container of that name may be made meanwhile: its
// own files stay.
func (k Kept) RemoveOrphan(absent func() (bool, error)) error {
	r, err := k.read()
	if err != nil || r != (root{}) && !r.gone() {
		return nil //nolint:nilerr // the next start of the container says what is wrong with its disk
	}
	if gone, err := absent(); !gone || err != nil {
		return err
	}
	aside := Kept{filepath.Join(filepath.Dir(k.Dir), asidePrefix+filepath.Base(k.Dir))}
	if err := os.Rename(k.Dir, aside.Dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("remove the disk of a container that is gone: %w", err)
	}
	now, err := aside.read()
	gone := err == nil && now == r
	if gone && r == (root{}) { // all such look alike
		gone, err = absent()
	}
	if gone {
		return aside.Remove()
	}
	back := unix.Renameat2(unix.AT_FDCWD, aside.Dir, unix.AT_FDCWD, k.Dir, unix.RENAME_NOREPLACE)
	return errors.Join(err, back, durable.SyncDir(filepath.Dir(k.Dir)))
}

// read is the note.
func (k Kept) read() (r root, err error) {
	data, err := os.ReadFile(filepath.Join(k.Dir, keptRoot))
	if err != nil {
		return root{}, err
	}
	return r, json.Unmarshal(data, &r)
}

// gone reports whether containerd has removed a root file system. Where its file system is not mounted that is not
// known.
func (r root) gone() bool {
	if r.Path == "" {
		return false
	}
	if _, err := os.Lstat(filepath.Dir(r.Path)); err != nil {
		return false
	}
	_, err := os.Lstat(r.Path)
	return errors.Is(err, fs.ErrNotExist)
}
