package initd

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	runDir    = "/run"
	cgroupDir = "/sys/fs/cgroup"
)

// mountEarly makes a root that pivot_root accepts and the kernel's file systems. The
// initramfs itself cannot be pivoted away from: it is bound over itself and moved to
// the root, where it is a mount like any other.
func mountEarly() error {
	steps := []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"/", "/newroot", "", unix.MS_BIND, ""},
		{"proc", "/newroot/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/newroot/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"devtmpfs", "/newroot/dev", "devtmpfs", unix.MS_NOSUID, ""},
		{"cgroup2", "/newroot/sys/fs/cgroup", "cgroup2", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"tmpfs", "/newroot/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	}
	for _, dir := range []string{"/newroot", "/proc", "/sys", "/dev", "/run"} {
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	for _, s := range steps {
		if err := unix.Mount(s.source, s.target, s.kind, s.flags, s.data); err != nil {
			return fmt.Errorf("mount %s: %w", s.target, err)
		}
	}
	if err := unix.Chdir("/newroot"); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	return unix.Chdir("/")
}
