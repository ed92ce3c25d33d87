package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// markName is a directory in upperdir that no overlay mount shows. A client that compares the snapshot with its image,
// to commit it, fails at it, and its error names the path. Without it the client would take the image's files for the
// container's, whose writes are in the VM's disk.
const markName = ".godwit - the files of this container are in its VM - use godwit cp or godwit checkpoint"

// redirect that no kernel takes: a relative one with a slash. Of the kernel: ovl_get_redirect_xattr in
// fs/overlayfs/namei.c, since 4.10.
const (
	redirectName = "trusted.overlay.redirect"
	noRedirect   = "in/vm"
)

// mark makes upperdir one that cannot be compared.
func (p *plan) mark() error {
	if p.upper == "" {
		return nil
	}
	err := os.MkdirAll(p.upper, 0o755) // a mount may leave it to who mounts
	if err == nil {
		err = p.inUpper(func(path string) error {
			if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			err := unix.Lsetxattr(path, redirectName, []byte(noRedirect), 0)
			if errors.Is(err, unix.ENOTSUP) {
				slog.Warn("the file system of upperdir has no trusted attributes: a commit of this container lacks what its VM "+
					"writes", "upperdir", p.upper)
				return os.Remove(path)
			}
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("mark upperdir %s: %w", p.upper, err)
	}
	return nil
}

// unmark reports whether there was a mark.
func (p *plan) unmark() (bool, error) {
	if p.upper == "" {
		return false, nil
	}
	if _, err := os.Lstat(filepath.Join(p.upper, markName)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	err := p.inUpper(os.Remove)
	return err == nil, err
}

// inUpper changes the mark at path. The times of upperdir, which a guest may see as those of its root, stay.
func (p *plan) inUpper(change func(path string) error) error {
	var st unix.Stat_t
	if err := unix.Stat(p.upper, &st); err != nil {
		return &os.PathError{Op: "stat", Path: p.upper, Err: err}
	}
	if err := change(filepath.Join(p.upper, markName)); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, p.upper, []unix.Timespec{st.Atim, st.Mtim}, 0)
}
