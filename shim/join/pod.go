package join

import (
	"context"
	"strings"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/rootfs"
)

// serialDigits are as many of a digest as fit a serial number after its first letter.
const serialDigits = 19

// PrepareImage names disks by their content, so that the containers of a pod share them.
func (d *disks) PrepareImage(ctx context.Context, req shim.DisksRequest) (*shim.DiskSet, error) {
	cache, err := rootfs.OpenCache(d.cfg.CacheDir(), int64(d.cfg.Cache.MaxSize))
	if err != nil {
		return nil, err
	}
	disks, err := rootfs.PrepareImage(ctx, req.Mounts, rootfs.Paths{Cache: cache, Dir: req.Dir,
		Program: rootfs.Program(req.Program)})
	if err != nil {
		return nil, err
	}
	set := new(shim.DiskSet)
	for _, disk := range disks {
		id := "i" + strings.TrimPrefix(disk.Digest, "sha256:")[:serialDigits]
		set.Layers = append(set.Layers, id)
		set.Disks = append(set.Disks, spec.Disk{
			ID: id, Serial: id, ReadOnly: true, Type: disk.Type, Size: disk.Size, Digest: disk.Digest,
		})
		set.Files = append(set.Files, journal.Disk{ID: id, Path: disk.Path})
	}
	return set, nil
}

func (*disks) PrepareScratch(_ context.Context, req shim.DisksRequest) (*shim.DiskSet, error) {
	path, size, err := rootfs.PrepareScratch(req.Dir, req.WritableSize)
	if err != nil {
		return nil, err
	}
	const rw = "rw"
	return &shim.DiskSet{
		Disks: []spec.Disk{{ID: rw, Serial: rw, Type: "ext4", Size: size}}, Writable: rw,
		Files: []journal.Disk{{ID: rw, Path: path}},
	}, nil
}
