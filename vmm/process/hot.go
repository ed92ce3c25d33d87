package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/osthread"
)

// A process that was sealed sees none of the host's files. HotDir is the directory in which it can
// be shown some later: a VMM that opens the disks that are plugged in by their paths. It has HotPoints
// files, 0 to HotPoints-1, over each of which one file can be mounted.
const (
	HotDir    = "/hot"
	HotPoints = 16
)

// HotPath is how the process names the file at that place.
func HotPath(place int) string { return filepath.Join(HotDir, strconv.Itoa(place)) }

// hotPoints makes the file system of HotDir, mounted nowhere.
func hotPoints() (*os.File, error) {
	dir, err := memoryFS()
	if err != nil {
		return nil, err
	}
	for place := range HotPoints {
		if err := (User{}).mknod(dir, strconv.Itoa(place), unix.S_IFREG, 0); err != nil {
			return nil, errors.Join(fmt.Errorf("make %s: %w", HotPath(place), err), dir.Close())
		}
	}
	if err := readOnly(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("make %s read-only: %w", HotDir, err), dir.Close())
	}
	return dir, nil
}

// Mount answers a mount of file that is attached nowhere, for Show. By it the user can open what file
// is, as by Private.
func (u User) Mount(file *os.File, write bool) (mount *os.File, err error) {
	info, err := stat(file)
	if err != nil {
		return nil, err
	}
	if info.Mode&syscall.S_IFMT != syscall.S_IFREG {
		dir, err := u.nodeFS(file.Name(), info, write)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		return mountOfNode(dir)
	}
	if mount, err = u.Private(file, write); err == nil && mount == file {
		mount, err = Detached(file)
	}
	if err != nil || write {
		return mount, err
	}
	if err := readOnly(mount); err != nil {
		return nil, errors.Join(fmt.Errorf("show %s read-only: %w", file.Name(), err), mount.Close())
	}
	return mount, nil
}

// Show attaches a mount of User.Mount at a place in the sealed process. What was at that place
// before is covered.
func (p *Process) Show(place int, mount *os.File) error {
	return osthread.Do(func() error {
		if err := p.enterMounts(); err != nil {
			return err
		}
		err := attach(mount, HotPath(place))
		if errors.Is(err, unix.ENOENT) {
			err = errors.New("it was started without places for files that are shown later")
		}
		if err != nil {
			return fmt.Errorf("show %s to process %d: %w: %w", mount.Name(), p.PID, errdefs.ErrFailedPrecondition, err)
		}
		return nil
	})
}

// Hide takes away whatever is mounted at these places. What the process has open stays open.
func (p *Process) Hide(places ...int) error {
	return osthread.Do(func() error {
		if err := p.enterMounts(); err != nil {
			return err
		}
		for _, place := range places {
			if err := unmountAll(HotPath(place)); err != nil {
				return fmt.Errorf("hide %s from process %d: %w", HotPath(place), p.PID, err)
			}
		}
		return nil
	})
}

// unmountAll unmounts what lies over each other at path.
func unmountAll(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil // nothing is mounted there
		}
		if err != nil {
			return err
		}
	}
}
