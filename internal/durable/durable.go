// Package durable replaces files so that a crash of the program or of the host leaves the old
// content or the new one, whole. A file is written under another name in its directory, synced
// and renamed, and the directory is synced.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"
)

// ErrUnsynced says that a file has its new content, which a crash may take back.
var ErrUnsynced = errors.New("replaced and not synced")

// Unfinished is a name in the directory of path, for content that is not whole. Each process has
// its own name: several may replace one file at the same time.
func Unfinished(path string) string { return fmt.Sprintf("%s.%d.tmp", path, os.Getpid()) }

// WriteFile replaces path. After an error other than ErrUnsynced the file is as it was. Within
// one process the caller orders the writes of one path.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	tmp := Unfinished(path)
	if err := Stage(tmp, data, mode); err != nil {
		return err
	}
	return Rename(tmp, path)
}

// Stage makes a file whose content is durable and whose name is not: Rename gives it its place.
// On an error no such file is left.
func Stage(path string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// Rename gives what Stage has written its place. On an error other than ErrUnsynced what was
// staged is gone.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return errors.Join(err, os.Remove(from))
	}
	if err := SyncDir(filepath.Dir(to)); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsynced, err)
	}
	return nil
}

// SyncDir makes the names in a directory durable. A variable for tests of what a disk refuses.
var SyncDir = func(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// DiskError gives the error of a write below state_dir its class and the remedy.
func DiskError(err error) error {
	switch {
	case IsFull(err):
		return fmt.Errorf("%w. To go on, make room in state_dir: %w", err, errdefs.ErrResourceExhausted)
	case errors.Is(err, syscall.EROFS):
		return ReadOnly(err)
	}
	return err
}

// ReadOnly is the error of a write below state_dir that the file system does not allow.
func ReadOnly(err error) error {
	return fmt.Errorf("%w. To go on, make state_dir writable: %w", err, errdefs.ErrFailedPrecondition)
}

// IsFull reports whether a file system had no room.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
