package stage

import (
	"fmt"
	"path/filepath"

	"godwit.dev/godwit/guest/stage/inroot"

	"golang.org/x/sys/unix"
)

// Device is a node of a block device that a container has.
type Device struct {
	Path     string
	Number   uint64
	Mode     uint32 // permission bits
	UID, GID uint32
}

// make makes the node below the root. What the image has in its place goes.
func (d *Device) make(root *inroot.Root, user *User) error {
	dir, err := root.MkdirAll(filepath.Dir(d.Path))
	if err != nil {
		return fmt.Errorf("make directory of device %s: %w", d.Path, err)
	}
	defer dir.Close()
	fd, name := int(dir.Fd()), filepath.Base(d.Path)
	if err := unix.Unlinkat(fd, name, 0); err != nil && err != unix.ENOENT {
		return fmt.Errorf("make device %s: replace what is there: %w", d.Path, err)
	}
	if err := unix.Mknodat(fd, name, unix.S_IFBLK|d.Mode, int(d.Number)); err != nil {
		return fmt.Errorf("make device %s: %w", d.Path, err)
	}
	uid, gid := user.owner(d.UID, d.GID)
	if err := unix.Fchownat(fd, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("own device %s: %w", d.Path, err)
	}
	return nil
}
