// Package inroot opens and makes paths below a directory that is the root for every symbolic
// link, absolute or not. So a container's files cannot lead outside of it. The guest's agent
// uses it on root file systems that it did not write.
package inroot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Root is an open directory.
type Root struct {
	file  *os.File
	owner *[2]int
}

// Open opens dir as a root.
func Open(dir string) (*Root, error) {
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open root: %w", err)
	}
	return &Root{file: f}, nil
}

// Close closes the root; files opened in it stay open.
func (r *Root) Close() error { return r.file.Close() }

// Own makes what MkdirAll and Touch make from now on belong to a user and a group. Without it they are the caller's.
func (r *Root) Own(uid, gid int) { r.owner = &[2]int{uid, gid} }

// made gives a name that was made its owner.
func (r *Root) made(dir *os.File, name string) error {
	if r.owner == nil {
		return nil
	}
	if err := unix.Fchownat(int(dir.Fd()), name, r.owner[0], r.owner[1], unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "chown", Path: name, Err: err}
	}
	return nil
}

// OpenFile is open(2) inside the root.
func (r *Root) OpenFile(path string, flags int, mode uint32) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	fd, err := patient(func() (int, error) { return unix.Openat2(int(r.file.Fd()), path, &how) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// MkdirAll makes a directory and its parents with mode 0755 and returns it opened with
// O_PATH.
func (r *Root) MkdirAll(path string) (*os.File, error) {
	path = clean(path)
	f, err := r.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil || !errors.Is(err, os.ErrNotExist) || path == "/" {
		return f, err
	}
	parent, err := r.MkdirAll(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	err = unix.Mkdirat(int(parent.Fd()), filepath.Base(path), 0o755)
	if err != nil && err != unix.EEXIST {
		return nil, &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	if err == nil {
		if err := r.made(parent, filepath.Base(path)); err != nil {
			return nil, err
		}
	}
	return r.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
}

// Touch makes an empty file and its parents unless something is there, and returns it
// opened with O_PATH.
func (r *Root) Touch(path string) (*os.File, error) {
	path = clean(path)
	f, err := r.OpenFile(path, unix.O_PATH, 0)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	parent, err := r.MkdirAll(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	made, err := r.Create(path, 0o644)
	if errors.Is(err, os.ErrExist) { // by another
		return r.OpenFile(path, unix.O_PATH, 0)
	}
	if err != nil {
		return nil, err
	}
	made.Close()
	if err := r.made(parent, filepath.Base(path)); err != nil {
		return nil, err
	}
	return r.OpenFile(path, unix.O_PATH, 0)
}

// Parent opens the directory that holds path, making it if need be, and returns it
// with path's last element.
func (r *Root) Parent(path string) (*os.File, string, error) {
	path = clean(path)
	dir, err := r.MkdirAll(filepath.Dir(path))
	return dir, filepath.Base(path), err
}

// Path names an open file for calls that take a path, such as mount(2).
func Path(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

func clean(path string) string { return filepath.Clean("/" + path) }
