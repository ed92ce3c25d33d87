package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
)

// write makes a file that appears whole or not at all.
func (l *Layout) write(path string, o Object, fill func(*os.File) error) error {
	f, publish, err := newFile(path)
	if err != nil {
		return fileError("put", o, err)
	}
	defer f.Close()
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err := publish(err == nil); err != nil {
		return fileError("put", o, err)
	}
	if err != nil {
		return fileError("put", o, err)
	}
	return fileError("put", o, durable.SyncDir(filepath.Dir(path)))
}

// newFile makes a file without a name, so that a killed process leaves nothing. Where
// the file system has no such files (NFS) it has a temporary name.
func newFile(path string) (f *os.File, publish func(bool) error, err error) {
	fd, err := unix.Open(filepath.Dir(path), unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return newNamedFile(path)
	}
	if err != nil {
		return nil, nil, err
	}
	f = os.NewFile(uintptr(fd), path)
	return f, func(ok bool) error {
		if !ok {
			return nil
		}
		err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
		if errors.Is(err, unix.EEXIST) {
			return replace(f, path)
		}
		return err
	}, nil
}

// replace settles a race with another writer of the same blob. What lies there without
// being whole gives way.
func replace(f *os.File, path string) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	if other, err := os.Stat(path); err == nil && other.Size() == mine.Size() {
		return nil
	}
	tmp := tempName(path)
	if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, tmp,
		unix.AT_SYMLINK_FOLLOW); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func newNamedFile(path string) (*os.File, func(bool) error, error) {
	tmp := tempName(path)
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, nil, err
	}
	return f, func(ok bool) error {
		if !ok {
			return os.Remove(tmp)
		}
		return os.Rename(tmp, path)
	}, nil
}

var temps atomic.Uint64

func tempName(path string) string {
	return fmt.Sprintf("%s.%d-%d.tmp", path, os.Getpid(), temps.Add(1))
}

// writeSynced makes a file, or another one of its name. It has that name when it is whole.
func writeSynced(path string, data []byte) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a process that was killed
		return err
	}
	f, publish, err := newFile(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync())
	return errors.Join(err, publish(err == nil), f.Close())
}

// fileError gives an error of the file system its class.
func fileError(verb string, o Object, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist) && (verb == "stat" || verb == "get"):
		return fmt.Errorf("%s %s: %w: %w", verb, o, err, errdefs.ErrNotFound)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return fmt.Errorf("%s %s: %w: %w", verb, o, err, errdefs.ErrPermissionDenied)
	case durable.IsFull(err):
		return fmt.Errorf("%s %s: %w. To go on, make room on that disk (state_dir, or registry.layout): %w", verb, o, err,
			errdefs.ErrResourceExhausted)
	case errors.Is(err, unix.EIO), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s %s: %w: %w", verb, o, err, errdefs.ErrUnavailable)
	default:
		return fmt.Errorf("%s %s: %w", verb, o, err)
	}
}

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}
