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
)

// EachKept calls fn for each container that something is kept of below top, and joins its errors. What a sweep that was
// killed has put aside is still its container's.
func EachKept(top string, fn func(namespace, id string, k Kept) error) error {
	namespaces, err := os.ReadDir(top)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, ns := range namespaces {
		containers, err := os.ReadDir(filepath.Join(top, ns.Name()))
		errs = append(errs, err)
		seen := map[string]bool{}
		for _, c := range containers {
			id := strings.TrimPrefix(c.Name(), asidePrefix)
			if !seen[id] {
				errs = append(errs, fn(ns.Name(), id, Kept{filepath.Join(top, ns.Name(), id)}))
			}
			seen[id] = true
		}
	}
	return errors.Join(errs...)
}

// Proof says whether a container is gone, and any task of it. Of one without a root file system, container says which
// it was; empty: not known.
type Proof func(rooted bool, container string) (gone bool, err error)

// of asks about the container of a note.
func (p Proof) of(r root) (gone bool, err error) { return p(!r.none(), r.Container) }

// RemoveOrphan removes what is kept of a container that is proved to be gone. The root file system has to be gone too.
// Another container of that name may be made meanwhile: its own files stay.
func (k Kept) RemoveOrphan(absent Proof) error {
	unlock, err := k.lock()
	if err != nil {
		return fmt.Errorf("remove the disk of a container that is gone: %w", err)
	}
	defer unlock()
	if stays, err := k.settle(absent); stays || err != nil {
		return err
	}
	r, err := k.read()
	if err != nil || !r.orphan() {
		return nil //nolint:nilerr // the next start of the container says what is wrong with its disk
	}
	if gone, err := absent.of(r); !gone || err != nil {
		return err
	}
	if err := os.Rename(k.Dir, k.aside().Dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("remove the disk of a container that is gone: %w", err)
	}
	_, err = k.settle(absent)
	return err
}

// Rootless reports whether this, or what is aside, is kept of a container without a root file system, and of which.
func (k Kept) Rootless() (container string, rootless bool, err error) {
	if r, err := k.aside().read(); err == nil && r.none() {
		return r.Container, true, nil
	}
	r, err := k.read()
	return r.Container, err == nil && r.none(), err
}

// read is the note.
func (k Kept) read() (r root, err error) {
	data, err := os.ReadFile(filepath.Join(k.Dir, keptRoot))
	if err != nil {
		return root{}, err
	}
	return r, json.Unmarshal(data, &r)
}

// orphan reports whether no root file system holds the disk. One that came from another node has none.
func (r root) orphan() bool { return r.none() || r.gone() }

// gone reports whether containerd has removed a root file system. It is not known where the directory of all snapshots
// is another one: containerd may have started before its file system was mounted.
func (r root) gone() bool {
	if r.Path == "" || r.Parent == "" {
		return false
	}
	parent, err := os.Open(filepath.Dir(r.Path))
	if err != nil {
		return false
	}
	defer parent.Close()
	if directoryID(parent) != r.Parent {
		return false
	}
	var st unix.Stat_t
	err = unix.Fstatat(int(parent.Fd()), filepath.Base(r.Path), &st, unix.AT_SYMLINK_NOFOLLOW)
	return errors.Is(err, fs.ErrNotExist)
}

// directoryID names a directory by its inode and birth. The number of a device may be another one after a boot, so
// it is used only where a file system has no births. Empty: not known.
func directoryID(dir *os.File) string {
	var st unix.Statx_t
	if err := unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return ""
	}
	if born := birth(&st); born != "" {
		return fmt.Sprintf("%d %s", st.Ino, born)
	}
	return fmt.Sprintf("%d on %d:%d", st.Ino, st.Dev_major, st.Dev_minor)
}

// birth of an inode; empty: the file system does not tell it.
func birth(st *unix.Statx_t) string {
	if st.Mask&unix.STATX_BTIME == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%09d", st.Btime.Sec, st.Btime.Nsec)
}
