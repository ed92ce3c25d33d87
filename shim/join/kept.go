package join

import (
	"github.com/containerd/containerd/api/types"

	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/rootfs"
)

func (d *disks) KeepWoken(namespace, id, dir string, set *shim.DiskSet) error {
	s := &rootfs.Set{Disks: set.Disks, Layers: set.Layers, Writable: set.Writable, Paths: map[string]string{}}
	for _, f := range set.Files {
		s.Paths[f.ID] = f.Path
	}
	return d.kept(namespace, id).Link(dir, s)
}

// left are the disks that a VM from another node has left for the next task of its container; nil: there are none. Such
// a container has no root file system.
func (d *disks) left(namespace, id, container string, mounts []*types.Mount) (*shim.DiskSet, error) {
	if len(mounts) > 0 {
		return nil, nil
	}
	s, err := d.kept(namespace, id).Whole(container)
	if s == nil || err != nil {
		return nil, err
	}
	set := &shim.DiskSet{Disks: s.Disks, Layers: s.Layers, Writable: s.Writable}
	for _, disk := range s.Disks {
		set.Files = append(set.Files, journal.Disk{ID: disk.ID, Path: s.Paths[disk.ID]})
	}
	return set, nil
}
