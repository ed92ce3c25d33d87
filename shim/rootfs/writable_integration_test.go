//go:build integration

package rootfs

import (
	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
)

func mountWritable(path, dir string) error {
	loop, err := mount.SetupLoop(path, mount.LoopParams{Autoclear: true})
	if err != nil {
		return err
	}
	defer loop.Close()
	return unix.Mount(loop.Name(), dir, "ext4", 0, "")
}
