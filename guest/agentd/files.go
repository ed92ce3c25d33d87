package agentd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage/inroot"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// copyFiles writes files as the container's init sees its root. It ends with the first that fails.
func (s *Service) copyFiles(ctx context.Context, c *container, files []*agentv1.File) error {
	if len(files) == 0 {
		return nil
	}
	roots, err := s.rootsOf(c)
	if err != nil {
		return err
	}
	defer roots.close()
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("copy files: %w", err)
		}
		if err := c.copyFile(roots, f); err != nil {
			return err
		}
	}
	return nil
}

// roots are a container's root file system as its init sees it, and as the agent has mounted it.
type roots struct{ inside, outside *inroot.Root }

func (r *roots) close() {
	r.inside.Close()
	r.outside.Close()
}

// rootsOf opens those of a container whose init runs, or waits.
func (s *Service) rootsOf(c *container) (*roots, error) {
	if c.init == nil || c.init.exited() {
		return nil, fmt.Errorf("copy files: the container's init does not run: %w", errdefs.ErrFailedPrecondition)
	}
	r := new(roots)
	err := s.children.unreaped(c.init.spawned, func(pid int) (err error) {
		r.inside, err = inroot.Open(fmt.Sprintf("/proc/%d/root", pid))
		return err
	})
	if err == unix.ESRCH || errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("copy files: the container's init has ended: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return nil, err
	}
	if r.outside, err = inroot.Open(c.root.path); err != nil {
		r.inside.Close()
		return nil, err
	}
	for _, root := range []*inroot.Root{r.inside, r.outside} {
		c.root.users.own(root)
	}
	return r, nil
}

// copyFile writes what is read-only for the container through the agent's own mount of the root file system.
func (c *container) copyFile(r *roots, f *agentv1.File) error {
	kept, err := copyFile(r.inside, f)
	if errors.Is(err, unix.EROFS) {
		kept, err = copyFile(r.outside, f)
	}
	if err == nil && kept != nil {
		err = c.keep(f.Path, kept)
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", f.Path, err)
	}
	return nil
}

// copyFile answers a regular file that is to be kept.
func copyFile(root *inroot.Root, f *agentv1.File) (kept *os.File, err error) {
	switch f.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		d, err := root.MkdirAll(f.Path)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		return nil, setAttributes(inroot.Path(d), f)
	case unix.S_IFLNK:
		return nil, copyLink(root, f)
	case unix.S_IFREG, 0:
		if f.Replace {
			return nil, replaceRegular(root, f)
		}
		return copyRegular(root, f)
	case unix.S_IFMT: // of no kind of file
		return nil, copyHardLink(root, f)
	}
	return nil, fmt.Errorf("type of mode %o: %w", f.Mode, errdefs.ErrNotImplemented)
}

func copyLink(root *inroot.Root, f *agentv1.File) error {
	dir, name, err := vacate(root, f.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	fd := int(dir.Fd())
	if err := unix.Symlinkat(f.Link, fd, name); err != nil {
		return err
	}
	return unix.Fchownat(fd, name, int(f.Uid), int(f.Gid), unix.AT_SYMLINK_NOFOLLOW)
}

func copyRegular(root *inroot.Root, f *agentv1.File) (kept *os.File, err error) {
	dir, _, err := root.Parent(f.Path)
	if err != nil {
		return nil, err
	}
	dir.Close()
	file, err := openRegular(root, f)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(int64(f.Offset), io.SeekStart); err != nil {
		return nil, err
	}
	if _, err := file.Write(f.Data); err != nil {
		return nil, err
	}
	if err := setAttributes(inroot.Path(file), f); err != nil || !f.Keep {
		return nil, err
	}
	// The very file, whatever has its name by now.
	return os.OpenFile(inroot.Path(file), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
}

// openRegular opens the file that has the path, or makes it. A file takes the place of what is none, such as a device
// of the container's, or a dangling link: resolv.conf may lead to a file of a service that is not there.
func openRegular(root *inroot.Root, f *agentv1.File) (*os.File, error) {
	flags := unix.O_WRONLY
	if !f.Append {
		flags |= unix.O_TRUNC
	}
	file, err := root.OpenRegular(f.Path, flags)
	if errors.Is(err, os.ErrNotExist) {
		file, err = root.Create(f.Path, 0o600)
	}
	if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, inroot.ErrNotRegular) {
		return file, err
	}
	if err := unlink(root, f.Path); err != nil {
		return nil, err
	}
	return root.Create(f.Path, 0o600)
}

// replaceRegular makes a new file and then gives it the path: no reader sees a part of it. A link under the name
// is not followed.
func replaceRegular(root *inroot.Root, f *agentv1.File) (err error) {
	if f.Append || f.Keep {
		return fmt.Errorf("a file that replaces is whole, and is not kept: %w", errdefs.ErrInvalidArgument)
	}
	made := filepath.Join(filepath.Dir(f.Path), "."+filepath.Base(f.Path)+".new")
	dir, name, err := vacate(root, made)
	if err != nil {
		return err
	}
	defer dir.Close()
	at := int(dir.Fd())
	fd, err := unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: made, Err: err}
	}
	file := os.NewFile(uintptr(fd), made)
	_, err = file.Write(f.Data)
	err = errors.Join(err, setAttributes(inroot.Path(file), f), file.Close())
	if err == nil {
		err = unix.Renameat(at, name, at, filepath.Base(f.Path))
	}
	if err != nil {
		_ = unix.Unlinkat(at, name, 0)
	}
	return err
}

// copyHardLink gives a file that was copied before one more name. Where the name is on another mount, it gets a copy.
func copyHardLink(root *inroot.Root, f *agentv1.File) error {
	from, err := root.OpenRegular(f.Link, unix.O_RDONLY|unix.O_NOFOLLOW)
	if errors.Is(err, inroot.ErrNotRegular) {
		return fmt.Errorf("%s: %w: %w", f.Link, err, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return err
	}
	defer from.Close()
	dir, name, err := vacate(root, f.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	fd := int(dir.Fd())
	err = unix.Linkat(unix.AT_FDCWD, inroot.Path(from), fd, name, unix.AT_SYMLINK_FOLLOW)
	if err != unix.EXDEV {
		return err
	}
	to, err := root.Create(f.Path, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	return setAttributes(inroot.Path(to), f)
}

// vacate removes what has a path, if anything has, and answers its directory, which the caller closes.
func vacate(root *inroot.Root, path string) (dir *os.File, name string, err error) {
	if dir, name, err = root.Parent(path); err != nil {
		return nil, "", err
	}
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && err != unix.ENOENT {
		dir.Close()
		return nil, "", err
	}
	return dir, name, nil
}

func unlink(root *inroot.Root, path string) error {
	dir, name, err := root.Parent(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Unlinkat(int(dir.Fd()), name, 0)
}

// setAttributes sets owner, mode and time. The owner comes first: chown clears setuid.
func setAttributes(path string, f *agentv1.File) error {
	if err := unix.Chown(path, int(f.Uid), int(f.Gid)); err != nil {
		return err
	}
	if err := unix.Chmod(path, f.Mode&0o7777); err != nil {
		return err
	}
	if f.MtimeUnixNano == 0 {
		return nil
	}
	return os.Chtimes(path, time.Time{}, time.Unix(0, f.MtimeUnixNano))
}
