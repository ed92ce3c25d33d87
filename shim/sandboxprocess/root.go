package sandboxprocess

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// notice is what lies in the sandbox process's root. Tools that copy files take /proc/PID/root of
// a task for its container's root; of a sandbox process that would be the host's.
const (
	noticeName = "FILES-ARE-IN-THE-VM"
	notice     = `The files of this container are inside a virtual machine; no directory of the host shows them.
Copy them through a process in the container, such as
  nerdctl exec NAME tar -C DIRECTORY -cf - . | tar -xf -
  tar -cf - . | nerdctl exec -i NAME tar -C DIRECTORY -xf -
`
)

// leaveRoot makes a read-only file system the root of this process. A user who looks for the
// container's files there then cannot read or write the host's. It has the notice in it, and the
// program that the sandbox process becomes.
//
// Like: mount -t tmpfs, chroot, mount -o remount,ro; it is mounted nowhere.
func leaveRoot() error {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make root of the sandbox process: %w", err)
	}
	defer unix.Close(fs)
	for _, option := range [][2]string{{"mode", "0555"}, {"size", "64k"}, {"nr_inodes", "4"}} {
		if err := unix.FsconfigSetString(fs, option[0], option[1]); err != nil {
			return fmt.Errorf("make root of the sandbox process: %s=%s: %w", option[0], option[1], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("make root of the sandbox process: %w", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return fmt.Errorf("mount root of the sandbox process: %w", err)
	}
	defer unix.Close(mount)
	dir := filepath.Join("/proc/self/fd", strconv.Itoa(mount))
	code, err := program()
	if err != nil {
		return err
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, noticeName), []byte(notice), 0o444),
		os.WriteFile(filepath.Join(dir, programName), code, 0o555),
	); err != nil {
		return fmt.Errorf("fill root of the sandbox process: %w", err)
	}
	if err := unix.FsconfigSetFlag(fs, "ro"); err != nil {
		return fmt.Errorf("make root of the sandbox process read-only: %w", err)
	}
	if err := unix.FsconfigReconfigure(fs); err != nil {
		return fmt.Errorf("make root of the sandbox process read-only: %w", err)
	}
	if err := unix.Fchdir(mount); err != nil {
		return fmt.Errorf("enter root of the sandbox process: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter root of the sandbox process: %w", err)
	}
	return nil
}
