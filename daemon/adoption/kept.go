package adoption

import (
	"errors"
	"io/fs"
	"os"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/rootfs"
)

// KeptDisks are those that wait for the next task of a container of this node.
type KeptDisks struct{ Config *config.Config }

// RemoveOrphans removes those of containers that are gone: absent says so, and no VM of that name has a directory here.
func (k KeptDisks) RemoveOrphans(absent func(vm *nodev1.VM) (bool, error)) error {
	return rootfs.EachKept(k.Config.DisksDir(), func(namespace, id string, kept rootfs.Kept) error {
		return kept.RemoveOrphan(func() (bool, error) {
			if _, err := os.Lstat(k.Config.VMDir(namespace, id)); !errors.Is(err, fs.ErrNotExist) {
				return false, err
			}
			return absent(&nodev1.VM{Namespace: namespace, Id: id})
		})
	})
}
