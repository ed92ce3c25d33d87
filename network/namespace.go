package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/osthread"
)

// Do runs f on a thread of its own in the network namespace at path. The thread is
// thrown away afterwards, so nothing else ever runs in that namespace by accident.
// Like: nsenter --net=$path
//
// A process that f starts stays in the namespace: that is how the pid which Create
// returns gets there. It must not ask for a parent death signal, because its parent
// is this thread.
func Do(path string, f func() error) error {
	ns, err := openNamespace(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return within(ns, f)
}

// IsHost says whether path names the namespace that this process runs in; no path
// means just that.
func IsHost(path string) (bool, error) {
	if path == "" {
		return true, nil
	}
	ns, err := openNamespace(path)
	if err != nil {
		return false, err
	}
	defer ns.Close()
	theirs, err := ns.Stat()
	if err != nil {
		return false, fmt.Errorf("stat namespace %s: %w", path, err)
	}
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return false, fmt.Errorf("stat own network namespace: %w", err)
	}
	return os.SameFile(own, theirs), nil
}

// NewGuestNamespace makes a network namespace with its loopback up and binds it to path, which must not exist. It is
// for a VM's interfaces: its kernel neither answers for the IPv4 addresses that they are given nor takes what comes for
// them. It does not ask whether another host has the IPv6 ones. Before a live move's end the VM itself does, on the
// node that it still runs on: an answer from here would end its connections. Like: ip netns add, and ip netns exec
// $path ip rule del table local
func NewGuestNamespace(path string) error { return newNamespace(path, clearLocalRoutes) }

// ForGuest makes a namespace that is there one for a VM's interfaces, as NewGuestNamespace makes it. Interfaces are to
// come after it.
func ForGuest(path string) error {
	if err := Do(path, clearLocalRoutes); err != nil {
		return fmt.Errorf("prepare namespace for a guest: %w", err)
	}
	return nil
}

func newNamespace(path string, within func() error) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return fmt.Errorf("make namespace %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make namespace %s: %w", path, errdefs.ErrAlreadyExists)
	} else if err != nil {
		return fmt.Errorf("make namespace %s: %w", path, err)
	}
	f.Close()
	err = osthread.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := errors.Join(loopbackUp(), within()); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err != nil {
		return errors.Join(fmt.Errorf("make namespace %s: %w", path, err), os.Remove(path))
	}
	return nil
}

// DeleteNamespace undoes NewGuestNamespace; one that is gone is success.
// Like: ip netns del
func DeleteNamespace(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove namespace %s: %w", path, err)
	}
	return nil
}

func loopbackUp() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	return h.LinkSetUp(lo)
}

// clearLocalRoutes makes the kernel of the thread's namespace know of no address that it is local.
func clearLocalRoutes() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority = unix.AF_INET, unix.RT_TABLE_LOCAL, 0
	if err := ignoreMissing(h.RuleDel(rule)); err != nil {
		return fmt.Errorf("delete rule of local addresses: %w", err)
	}
	for _, which := range []string{"all", "default"} {
		if err := os.WriteFile(sysctlPath(which, "accept_dad"), []byte("0"), 0o644); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// IsNamespace reports whether a network namespace is there. The file of one that is being made or deleted is none.
func IsNamespace(path string) (bool, error) {
	ns, err := openNamespace(path)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, ns.Close()
}

// openNamespace gives ErrNotFound for a path that is gone, or that is only the empty
// file which an unmounted namespace leaves.
func openNamespace(path string) (*os.File, error) {
	// Without O_NONBLOCK a FIFO in that place would hold us for ever.
	ns, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open network namespace %s: %w", path, errdefs.ErrNotFound)
	} else if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(ns.Fd()), &fs); err != nil {
		ns.Close()
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		ns.Close()
		return nil, fmt.Errorf("open network namespace %s: no namespace there: %w",
			path, errdefs.ErrNotFound)
	}
	kind, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_NSTYPE)
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	if kind != unix.CLONE_NEWNET {
		ns.Close()
		return nil, fmt.Errorf("open network namespace %s: another kind of namespace: %w",
			path, errdefs.ErrInvalidArgument)
	}
	return ns, nil
}

func within(ns *os.File, f func() error) error {
	return osthread.Do(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", ns.Name(), err)
		}
		return f()
	})
}
