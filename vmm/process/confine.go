package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/osthread"
)

// nodes are those of /dev that any VMM may open: the kernel's own numbers of them.
var nodes = []struct {
	name         string
	major, minor uint32
}{{"null", 1, 3}, {"zero", 1, 5}, {"random", 1, 8}, {"urandom", 1, 9}}

// ownMounts gives the calling thread, which is thrown away, mounts of its own, in which
// /dev has the nodes of a VMM and nothing else. What the host unmounts goes here too.
func (l Launch) ownMounts() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w: %w", errdefs.ErrFailedPrecondition, err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep mounts from the host: %w", err)
	}
	if err := leaveInitramfs(); err != nil {
		return fmt.Errorf("leave the root of all mounts: %w", err)
	}
	dev, err := memoryFS()
	if err != nil {
		return err
	}
	defer dev.Close()
	for _, n := range nodes {
		if err := (User{}).mknod(dev, n.name, unix.S_IFCHR|0o666, unix.Mkdev(n.major, n.minor)); err != nil {
			return fmt.Errorf("make /dev/%s: %w: %w", n.name, errdefs.ErrFailedPrecondition, err)
		}
	}
	return errors.Join(l.ownDevice(dev), attach(dev, "/dev"))
}

// Confinable tries whether a process of that user can be started Confined, with that device, and
// sealed; 0: root; empty: none.
func Confinable(user int, device string) error {
	return osthread.Do(func() error {
		if err := (Launch{User: User{ID: user}, Device: device}).ownMounts(); err != nil {
			return err
		}
		if err := hideFiles([]string{"/dev", "/proc"}); err != nil {
			return fmt.Errorf("take the host's files from a process: %w: %w", err, errdefs.ErrFailedPrecondition)
		}
		return dropRights()
	})
}

// ownDevice makes the user's own node of the device that the process opens by its path.
func (l Launch) ownDevice(dev *os.File) error {
	if filepath.Dir(l.Device) != "/dev" {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(l.Device, &st); err != nil {
		return fmt.Errorf("look at %s: %w: %w", l.Device, errdefs.ErrFailedPrecondition, err)
	}
	if err := l.User.mknod(dev, filepath.Base(l.Device), st.Mode&unix.S_IFMT|0o600, st.Rdev); err != nil {
		return fmt.Errorf("make a node of %s for user %d: %w: %w", l.Device, l.User.ID, errdefs.ErrFailedPrecondition, err)
	}
	return nil
}

func attach(mount *os.File, path string) error {
	if err := unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	return nil
}

// dropRights takes from the calling thread, and so from what it starts, the ways to rights:
// the bounding, ambient and inheritable sets, and programs that have rights of their own.
// What the thread has itself it keeps until the exec. A caller that has none to give is left
// as it is.
func dropRights() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no new privileges: %w", err)
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var own [2]unix.CapUserData
	if err := capabilities(unix.SYS_CAPGET, &head, &own); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if own[0].Effective&(1<<unix.CAP_SETPCAP) == 0 {
		if os.Geteuid() == 0 {
			return fmt.Errorf("drop capabilities: CAP_SETPCAP is missing: %w", errdefs.ErrFailedPrecondition)
		}
		return nil
	}
	for c := uintptr(0); ; c++ {
		if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err != nil {
			break // the kernel has no more
		} else if has == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop ambient capabilities: %w", err)
	}
	own[0].Inheritable, own[1].Inheritable = 0, 0
	if err := capabilities(unix.SYS_CAPSET, &head, &own); err != nil {
		return fmt.Errorf("drop inheritable capabilities: %w", err)
	}
	return nil
}

// capabilities are of the calling thread: all of them, of which x/sys takes the first half.
func capabilities(call uintptr, head *unix.CapUserHeader, data *[2]unix.CapUserData) error {
	if _, _, e := unix.RawSyscall(call, uintptr(unsafe.Pointer(head)), uintptr(unsafe.Pointer(data)), 0); e != 0 {
		return e
	}
	runtime.KeepAlive(head)
	return nil
}
