package archive

import (
	"fmt"
	"os"
	"path"
	"regexp"

	"github.com/containerd/errdefs"
)

// partialPrefix begins the name of a file that is not whole yet.
const partialPrefix = ".godwit-"

// partialName is such a name: what follows is of rand.Text.
var partialName = regexp.MustCompile(`^\.godwit-[A-Z2-7]{26}$`)

// partialMode is that of such a file. One that is whole has the mode of its member.
const partialMode = 0o600

// createTries bounds how often a file is made again. Each copy looks for leftovers once in a directory.
const createTries = 100

// create makes a file that is not whole yet. It is locked while a copy writes it. Another copy that begins may take it
// away between the two: it is made again.
func create(root *os.Root, name string) (*os.File, error) {
	for range createTries {
		f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, partialMode)
		if err != nil {
			return nil, err
		}
		if locked(f) {
			there, err := root.Lstat(name)
			own, oerr := f.Stat()
			if err == nil && oerr == nil && os.SameFile(there, own) {
				return f, nil
			}
		}
		_ = f.Close()
		_ = root.Remove(name)
	}
	return nil, fmt.Errorf("make a file for the copy: another copy takes it away: %w", errdefs.ErrAborted)
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
	if err != nil || !os.SameFile(info, own) || !locked(f) {
		return
	}
	_ = root.Remove(name)
}
