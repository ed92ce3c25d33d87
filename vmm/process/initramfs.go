package process

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// leaveInitramfs makes a copy of all mounts the root of the calling thread's mount namespace. It does so where its root
// is the root of all mounts, as on a host that runs from its initramfs: that one can never be changed (pivot_root(2),
// EINVAL). The thread is in the copy then, and so is what it starts.
func leaveInitramfs() error {
	bottom, err := onRootOfMounts()
	if err != nil || !bottom {
		return err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("copy all mounts: %w", err)
	}
	all := os.NewFile(uintptr(fd), "/")
	defer all.Close()
	if err := attach(all, "/"); err != nil {
		return err
	}
	if err := unix.Fchdir(fd); err != nil {
		return err
	}
	return unix.Chroot(".")
}

// onRootOfMounts reports whether the thread's root is a mount that is on no other: its own parent,
// as /proc/PID/mountinfo shows it (proc_pid_mountinfo(5): mount ID, parent ID, device, root, mount point).
func onRootOfMounts() (bool, error) {
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && f[0] == f[1] && f[4] == "/" {
			return true, nil
		}
	}
	return false, nil
}
