package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/internal/filelock"
)

// asidePrefix begins the name of what is being removed. No container has such an id.
const asidePrefix = ".gone-"

// aside is where the directory is while it is removed.
func (k Kept) aside() Kept {
	return Kept{filepath.Join(filepath.Dir(k.Dir), asidePrefix+filepath.Base(k.Dir))}
}

// lock has one process at a time look at what is aside in a namespace.
func (k Kept) lock() (unlock func(), err error) {
	dir, err := os.Open(filepath.Dir(k.Dir))
	if err != nil {
		return nil, err
	}
	if err := filelock.Lock(dir, unix.LOCK_EX); err != nil {
		return nil, errors.Join(&os.PathError{Op: "flock", Path: dir.Name(), Err: err}, dir.Close())
	}
	return func() { _ = dir.Close() }, nil
}

// settle removes what is aside if its container is still proved to be gone, and gives it back if not. The directory of
// another container of that name stays as it is: then what is aside waits for the end of that one. The caller has the
// lock.
func (k Kept) settle(absent Proof) (stays bool, err error) {
	aside := k.aside()
	if _, err := os.Lstat(aside.Dir); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	r, err := aside.read()
	gone := err == nil && r.orphan()
	if errors.Is(err, fs.ErrNotExist) { // the note goes with the rest, after a proof
		r, gone = root{Path: aside.Dir}, true
	}
	if err = nil; gone {
		gone, err = absent.of(r)
	}
	if gone && err == nil {
		return false, aside.Remove()
	}
	return true, errors.Join(err, k.giveBack())
}

// giveBack what is aside, if nothing has taken its place.
func (k Kept) giveBack() error {
	err := unix.Renameat2(unix.AT_FDCWD, k.aside().Dir, unix.AT_FDCWD, k.Dir, unix.RENAME_NOREPLACE)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = durable.SyncDir(filepath.Dir(k.Dir))
	}
	if err != nil {
		return fmt.Errorf("give %s its disk back: %w", k.Dir, err)
	}
	return nil
}

// recover gives back what a sweep that was killed, or still looks, has put aside of a root file system that is there.
func (k Kept) recover(r root) error {
	if _, err := os.Lstat(k.aside().Dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := k.lock()
	if err != nil {
		return err
	}
	defer unlock()
	kept, err := k.aside().read()
	if errors.Is(err, fs.ErrNotExist) { // it is not there any more, or its removal has begun, after a proof
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the container's writable disk in %s, which stays. If it is not needed, remove that "+
			"directory: %w", k.aside().Dir, err)
	}
	if !kept.same(r) {
		return nil
	}
	return k.giveBack()
}

// spare puts aside what is kept of a container without a root file system, if another one of its name takes the place:
// it may be in another database of containerd, and then this one is no proof that it is gone. A sweep removes it with
// that proof.
func (k Kept) spare(r root) error {
	old, err := k.read()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil || !old.none() || old.Container == "" || old.same(r) {
		return nil
	}
	unlock, err := k.lock()
	if err != nil {
		return err
	}
	defer unlock()
	aside := k.aside().Dir
	err = unix.Renameat2(unix.AT_FDCWD, k.Dir, unix.AT_FDCWD, aside, unix.RENAME_NOREPLACE)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s and %s have the disks of two other containers of that name. Remove what is not needed: %w",
			k.Dir, aside, errdefs.ErrFailedPrecondition)
	}
	if err == nil {
		err = durable.SyncDir(filepath.Dir(k.Dir))
	}
	return err
}
