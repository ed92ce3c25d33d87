package stage

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// MapMount mounts what source shows once more, on target. The files have the ids of a user namespace there.
func MapMount(source, target string, users int) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone mount: %w", err)
	}
	defer unix.Close(fd)
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users)}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		return fmt.Errorf("map ids of mount: %w", err)
	}
	const flags = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_SYMLINKS
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, flags); err != nil {
		return fmt.Errorf("move mount: %w", err)
	}
	return nil
}
