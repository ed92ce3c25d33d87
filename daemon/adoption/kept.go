package adoption

import (
	"errors"
	"io/fs"
	"os"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/tasks"
	"godwit.dev/godwit/shim/rootfs"
)

// KeptDisks are those that wait for the next task of a container of this node.
type KeptDisks struct{ Config *config.Config }

// RemoveOrphans removes those of containers that are gone: absent says so, and no VM of that name has a directory here.
func (k KeptDisks) RemoveOrphans(absent func(tasks.KeptDisk) (bool, error)) error {
	return rootfs.EachKept(k.Config.DisksDir(), func(namespace, id string, kept rootfs.Kept) error {
		return kept.RemoveOrphan(func(rooted bool, container string) (bool, error) {
			if _, err := os.Lstat(k.Config.VMDir(namespace, id)); !errors.Is(err, fs.ErrNotExist) {
				return false, err
			}
			return absent(tasks.KeptDisk{VM: &nodev1.VM{Namespace: namespace, Id: id}, Rooted: rooted, Container: container})
		})
	})
}

// Rootless lists those of containers without a root file system.
func (k KeptDisks) Rootless() (all []tasks.KeptDisk, err error) {
	err = rootfs.EachKept(k.Config.DisksDir(), func(namespace, id string, kept rootfs.Kept) error {
		container, rootless, err := kept.Rootless()
		if rootless {
			all = append(all, tasks.KeptDisk{VM: &nodev1.VM{Namespace: namespace, Id: id}, Container: container})
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it is being made, or removed
		}
		return err
	})
	return all, err
}
