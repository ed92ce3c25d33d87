package agentd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// kindMounted is the kind of a volume that is the file system on a disk of its own.
const kindMounted = "mounted"

// mountDisk mounts the disk as the directory that containers see.
func (v *volume) mountDisk(ctx context.Context, options []string) error {
	if v.disk.Type != "ext4" {
		return fmt.Errorf("file system %q of a disk in a guest: %w", v.disk.Type, errdefs.ErrNotImplemented)
	}
	flags, data, err := stage.FilesystemOptions(v.disk.Type, options)
	if err != nil {
		return err
	}
	device, err := awaitDisk(ctx, v.disk.Serial)
	if err != nil {
		return err
	}
	if v.disk.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	v.root = rootfs{dir: v.dir}
	_, err = v.root.make(filepath.Base(v.data()), device, v.disk.Type, flags, data)
	return err
}

// removeMountPoint removes nothing that is below it: a mount that is there still is the disk's content.
func (v *volume) removeMountPoint() error {
	for _, dir := range []string{v.data(), v.dir} {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove volume %s: remove %s: %w", v.id, dir, err)
		}
	}
	return nil
}
