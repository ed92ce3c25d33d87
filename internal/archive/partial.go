package archive

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"syscall"

	"github.com/containerd/errdefs"
)

// partialPrefix begins the name of a file that is not whole yet.
const partialPrefix = ".godwit-"

// partialName is such a name: what follows is of rand.Text.
var partialName = regexp.MustCompile(`^\.godwit-[A-Z2-7]{26}$`)

// linkPrefix begins the name of a link that is not in its place yet. A hard link may lead to a file that no copy has
// locked, so that it is never taken for one of a killed copy.
const linkPrefix = ".godwit-link-"

// partialMode is that of such a file. One that is whole has the mode of its member.
const partialMode = 0o600

// createTries bounds how often a file is made again. Each copy looks for leftovers once in a directory.
const createTries = 100

// tryLock takes the lock of a file. EWOULDBLOCK: another process has it; any other error tells nothing of that, as some
// file systems serve no locks. A variable for the tests.
var tryLock = func(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// create makes a file that is not whole yet in a directory, and answers its name. It is locked while a copy writes it.
// Another copy that begins may take it away between the two. It is made again then, under a new name: the other copy
// may still be about to remove the old one.
func create(root *os.Root, dir string) (*os.File, string, error) {
	for range createTries {
		name := path.Join(dir, partialPrefix+rand.Text())
		f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, partialMode)
		if err != nil {
			return nil, "", err
		}
		if err := tryLock(f); err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
			return f, name, nil // no copy can lock it, and so none takes it away
		} else if err == nil {
			there, err := root.Lstat(name)
			own, oerr := f.Stat()
			if err == nil && oerr == nil && os.SameFile(there, own) {
				return f, name, nil
			}
		}
		_ = f.Close()
	}
	return nil, "", fmt.Errorf("make a file for the copy: another copy takes it away: %w", errdefs.ErrAborted)
}

// sweep removes what a copy that was killed has left in a directory: no process has it locked. What cannot be looked at
// stays.
func sweep(root *os.Root, dir string) {
	d, err := root.Open(dir)
	if err != nil {
		return
	}
	names, _ := d.Readdirnames(-1)
	_ = d.Close()
	for _, name := range names {
		if partialName.MatchString(name) {
			abandoned(root, path.Join(dir, name))
		}
	}
}

// abandoned removes a file if it is of a copy that was killed.
func abandoned(root *os.Root, name string) {
	info, err := root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Mode() != partialMode {
		return
	}
	f, err := root.OpenFile(name, os.O_RDWR|nonblock, 0)
	if err != nil {
		return
	}
	defer f.Close()
	own, err := f.Stat()
	if err != nil || !os.SameFile(info, own) || tryLock(f) != nil {
		return
	}
	_ = root.Remove(name)
}
