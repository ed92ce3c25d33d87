package process

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/osthread"
)

// node makes a node of the device that info is of, in a file system that is mounted nowhere. It is for the user alone,
// and to be read alone unless write is set: it goes with the last descriptor of it.
func (u User) node(name string, info *syscall.Stat_t, write bool) (*os.File, error) {
	dir, err := u.nodeFS(name, info, write)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), "node", unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the node of %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// nodeFS makes the file system with that node.
func (u User) nodeFS(name string, info *syscall.Stat_t, write bool) (*os.File, error) {
	mode := info.Mode&syscall.S_IFMT | 0o400
	if write {
		mode |= 0o200
	}
	dir, err := memoryFS()
	if err != nil {
		return nil, fmt.Errorf("make a node of %s: %w", name, err)
	}
	if err := u.mknod(dir, "node", mode, info.Rdev); err != nil {
		err = fmt.Errorf("make a node of %s: %w: %w", name, errdefs.ErrFailedPrecondition, err)
		return nil, errors.Join(err, dir.Close())
	}
	if err := readOnly(dir); err != nil { // the node is the user's, who could change its mode
		return nil, errors.Join(fmt.Errorf("make a node of %s: %w", name, err), dir.Close())
	}
	return dir, nil
}

// mountOfNode answers a mount of the node in a file system of nodeFS. A mount can be cloned only from a
// namespace: the file system is attached to one of the thread's own for it.
func mountOfNode(dir *os.File) (mount *os.File, err error) {
	err = osthread.Do(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make a mount namespace: %w: %w", errdefs.ErrFailedPrecondition, err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("keep mounts from the host: %w", err)
		}
		if err := attach(dir, "/dev"); err != nil {
			return err
		}
		const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/dev/node", flags)
		if err != nil {
			return fmt.Errorf("clone the mount of a node: %w", err)
		}
		mount = os.NewFile(uintptr(fd), dir.Name())
		return nil
	})
	return mount, err
}

// readOnly keeps what lies in a mount from being changed. Devices in it are opened for writing all the same.
func readOnly(mount *os.File) error {
	return unix.MountSetattr(int(mount.Fd()), "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// mknod makes a node below dir, whatever the umask says, that is the user's.
func (u User) mknod(dir *os.File, name string, mode uint32, device uint64) error {
	at := int(dir.Fd())
	if err := unix.Mknodat(at, name, mode, int(device)); err != nil {
		return err
	}
	return errors.Join(unix.Fchmodat(at, name, mode&0o777, 0),
		unix.Fchownat(at, name, u.ID, u.ID, unix.AT_SYMLINK_NOFOLLOW))
}

// memoryFS makes an empty file system in memory, mounted nowhere.
func memoryFS() (*os.File, error) {
	return newFS("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "mode", "0755", "size", "64k", "nr_inodes", "64")
}

// newFS makes a file system of that kind with pairs of options; nothing is mounted.
func newFS(kind string, attr int, options ...string) (*os.File, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a %s: %w", kind, err)
	}
	defer unix.Close(fs)
	for i := 0; i < len(options); i += 2 {
		if err := unix.FsconfigSetString(fs, options[i], options[i+1]); err != nil {
			return nil, fmt.Errorf("make a %s with %s=%s: %w", kind, options[i], options[i+1], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("make a %s: %w", kind, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return nil, fmt.Errorf("make a %s: %w", kind, err)
	}
	return os.NewFile(uintptr(fd), kind), nil
}

// mapOwner answers the file as one of the user's: by a mount of it, mounted nowhere, that
// takes its owner for the user. The file itself stays as it is.
func (u User) mapOwner(file *os.File, info *syscall.Stat_t) (*os.File, error) {
	ids, err := idMap(info, u.ID)
	if err != nil {
		return nil, err
	}
	defer ids.Close()
	mount, err := Detached(file)
	if err != nil {
		return nil, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY, Userns_fd: uint64(ids.Fd())}
	if err := unix.MountSetattr(int(mount.Fd()), "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return nil, errors.Join(fmt.Errorf("map owner: %w", err), mount.Close())
	}
	return mount, nil
}

// Detached answers a file or directory as the root of a mount that is nowhere: ".." ends in
// it. It can be named through /proc/self/fd, not read by itself.
func Detached(file *os.File) (*os.File, error) {
	fd, err := Control(file, func(fd int) (int, error) {
		return unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	})
	if err != nil {
		return nil, fmt.Errorf("clone the mount of %s: %w: %w", file.Name(), errdefs.ErrFailedPrecondition, err)
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
}

// idMap is a user namespace that maps the owner of a file to the user. It takes a process
// to make one, which is ended at its exec: it executes nothing.
func idMap(info *syscall.Stat_t, user int) (file *os.File, err error) {
	err = osthread.Do(func() (err error) { // it traces
		file, err = idMapHere(info, user)
		return err
	})
	return file, err
}

func idMapHere(info *syscall.Stat_t, user int) (*os.File, error) {
	one := func(id uint32) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: int(id), HostID: user, Size: 1}}
	}
	pidfd := -1
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"godwit"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: one(info.Uid), GidMappings: one(info.Gid), Ptrace: true,
		PidFD: &pidfd,
	}})
	if err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	return file, errors.Join(err, reap(pidfd), closePidfd(pidfd))
}
