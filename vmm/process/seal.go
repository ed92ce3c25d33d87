package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/osthread"
)

// Seal takes the host's files from a process that was started Confined: its root is an empty file system from then on,
// which cannot be written to. It has opened what it needs, its libraries among them, and got nothing yet that a
// stranger made. In keep are those of "/dev" and "/proc" that it opens later: its own nodes, and a /proc in which it
// sees itself. With HotDir it can be shown files later.
func (p *Process) Seal(keep ...string) error {
	if err := osthread.Do(func() error { return p.sealHere(keep) }); err != nil {
		return fmt.Errorf("take the host's files from process %d: %w", p.PID, err)
	}
	return nil
}

func (p *Process) sealHere(keep []string) error {
	if err := p.enterMounts(); err != nil {
		return err
	}
	return hideFiles(keep)
}

// enterMounts moves the calling thread, which is thrown away, to the process's mount namespace.
func (p *Process) enterMounts() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the program's directories: %w", err)
	}
	_, err := Control(p.pidfd, func(fd int) (struct{}, error) { return struct{}{}, unix.Setns(fd, unix.CLONE_NEWNS) })
	if err != nil {
		return fmt.Errorf("enter its mount namespace: %w", err)
	}
	return nil
}

// hideFiles gives all processes of the thread's mount namespace whose root is the thread's an empty
// one, with what keep names.
func hideFiles(keep []string) error {
	root, err := memoryFS()
	if err != nil {
		return err
	}
	defer root.Close()
	// Found by the paths of before: once the root is mounted, /dev is another one.
	var kept []*os.File
	defer func() {
		for _, mount := range kept {
			mount.Close()
		}
	}()
	for _, path := range keep {
		mount, err := keptMount(path)
		if err != nil {
			return fmt.Errorf("keep %s: %w", path, err)
		}
		kept = append(kept, mount)
		if err := unix.Mkdirat(int(root.Fd()), filepath.Base(path), 0o755); err != nil {
			return fmt.Errorf("keep %s: %w", path, err)
		}
	}
	if err := attach(root, "/dev"); err != nil {
		return err
	}
	if err := unix.Fchdir(int(root.Fd())); err != nil {
		return err
	}
	for i, path := range keep {
		if err := attach(kept[i], filepath.Base(path)); err != nil {
			return err
		}
	}
	return becomeRoot()
}

func keptMount(path string) (*os.File, error) {
	switch path {
	case HotDir:
		return hotPoints()
	case "/proc":
		const attr = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
		return newFS("proc", attr, "hidepid", "ptraceable", "subset", "pid")
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return nil, errors.Join(fmt.Errorf("make it read-only: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), path), nil
}

// becomeRoot makes the mount that the working directory is in the root of the namespace and of all whose root was the
// old one. Then it lets go of the old one.
func becomeRoot() error {
	const flags = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NOEXEC
	if err := unix.Mount("", ".", "", flags, ""); err != nil {
		return fmt.Errorf("make its root read-only: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change its root: %w", err)
	}
	// The old root lies on top of the new one.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let go of its old root: %w", err)
	}
	return nil
}
