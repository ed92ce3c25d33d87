package stage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"godwit.dev/godwit/guest/stage/inroot"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// make builds the container round this process, up to the point where only the process itself is
// missing. This process is in the pid, uts and ipc namespaces that it is to have. What is to be read-only
// still is not: files are copied in first. The mount namespace is new from here on, not before:
// this process may be older than the root that it is to see. It is this thread's alone, which is
// the one that exec keeps.
func (c *Container) make() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare mounts and cgroup: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// pivot_root wants a mount of its own.
	if err := unix.Mount(c.Root, c.Root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind root: %w", err)
	}
	for i := range c.Mounts {
		if err := c.Mounts[i].mount(c); err != nil {
			return err
		}
	}
	if err := c.devices(); err != nil {
		return err
	}
	if c.Hostname != "" {
		if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
			return fmt.Errorf("set hostname %q: %w", c.Hostname, err)
		}
	}
	if err := sysctl(c.Sysctl); err != nil {
		return err
	}
	return pivot(c.Root)
}

// sysctl writes through the agent's /proc; keys of a namespace act on ours.
func sysctl(values map[string]string) error {
	for key, value := range values {
		name := strings.ReplaceAll(key, ".", "/")
		if strings.Contains(key, "/") { // the other notation, for names with dots
			name = key
		}
		path := filepath.Join("/proc/sys", filepath.Clean("/"+name))
		err := os.WriteFile(path, []byte(value), 0)
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("linux.sysctl %s: no such key in the guest: %w", key, errdefs.ErrInvalidArgument)
		}
		if err != nil {
			return fmt.Errorf("linux.sysctl %s=%s: %w: %w", key, value, err, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// pivot makes dir the root and lets go of the old one.
func pivot(dir string) error {
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	// The old root is stacked on the new one and then taken away.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	return nil
}

// seal makes read-only and hides what is to be. It runs inside the new root.
func (c *Container) seal() error {
	for i := range c.Mounts {
		if err := c.Mounts[i].seal(); err != nil {
			return err
		}
	}
	for i := range c.Copies {
		if err := c.Copies[i].remount(); err != nil {
			return err
		}
	}
	for _, path := range c.ReadOnly {
		if err := readOnly(path); err != nil {
			return err
		}
	}
	for _, path := range c.Masked {
		if err := mask(path); err != nil {
			return err
		}
	}
	if c.ReadOnlyRoot {
		if err := remountReadOnly("/"); err != nil {
			return err
		}
	}
	return propagate("/", c.Propagation)
}

func propagate(path, how string) error {
	if how == "" {
		return nil
	}
	flags, ok := propagation[how]
	if !ok {
		return fmt.Errorf("linux.rootfsPropagation: unknown %q: %w", how, errdefs.ErrInvalidArgument)
	}
	if err := unix.Mount("", path, "", flags, ""); err != nil {
		return fmt.Errorf("make %s %s: %w", path, how, err)
	}
	return nil
}

func readOnly(path string) error {
	err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, "")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("linux.readonlyPaths %s: %w", path, err)
	}
	return remountReadOnly(path)
}

// remountReadOnly keeps the other flags of the mount.
func remountReadOnly(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fmt.Errorf("make %s read-only: %w", path, err)
	}
	// statfs's flags of a mount equal those of mount(2), except these.
	keep := uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME)
	if st.Flags&unix.ST_RELATIME != 0 {
		keep |= unix.MS_RELATIME
	}
	if err := unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|keep, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", path, err)
	}
	return nil
}

func mask(path string) error {
	err := unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
	if errors.Is(err, unix.ENOTDIR) {
		err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY, "size=0k,nr_inodes=1")
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("linux.maskedPaths %s: %w", path, err)
	}
	return nil
}

// node is a device every container has.
type node struct {
	name         string
	major, minor uint32
}

var nodes = []node{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}

var links = map[string]string{
	"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
	"stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx", "core": "/proc/kcore",
}

// open opens the root. What is made in it belongs to the container's root.
func (c *Container) open() (*inroot.Root, error) {
	root, err := inroot.Open(c.Root)
	if err == nil && c.User != nil {
		root.Own(c.User.Root())
	}
	return root, err
}

// devices makes the default /dev nodes and links in the root, and the container's own.
func (c *Container) devices() error {
	root, err := c.open()
	if err != nil {
		return err
	}
	defer root.Close()
	dev, err := root.MkdirAll("/dev")
	if err != nil {
		return fmt.Errorf("make /dev: %w", err)
	}
	defer dev.Close()
	fd := int(dev.Fd())
	old := unix.Umask(0)
	defer unix.Umask(old)
	for _, n := range nodes {
		err := unix.Mknodat(fd, n.name, unix.S_IFCHR|0o666, int(unix.Mkdev(n.major, n.minor)))
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("make /dev/%s: %w", n.name, err)
		}
	}
	for name, target := range links {
		if name == "ptmx" { // an image's own node would lead to another devpts
			_ = unix.Unlinkat(fd, name, 0)
		}
		if err := unix.Symlinkat(target, fd, name); err != nil && err != unix.EEXIST {
			return fmt.Errorf("make /dev/%s: %w", name, err)
		}
	}
	for i := range c.Devices {
		if err := c.Devices[i].make(root, c.User); err != nil {
			return err
		}
	}
	return nil
}
