package shim

import (
	"context"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/api/types"

	"godwit.dev/godwit/api/spec"
)

type fakeDisks struct {
	*faults
	carries bool
}

func (d *fakeDisks) Prepare(_ context.Context, r DisksRequest) (*DiskSet, error) {
	if err := d.call("prepare disks"); err != nil {
		return nil, err
	}
	path := filepath.Join(r.Dir, "rw.img")
	err := os.WriteFile(path, []byte("disk"), 0o600)
	return &DiskSet{
		Disks: []spec.Disk{{ID: "rw", Serial: "rw", Type: "ext4", Size: 4}}, Writable: "rw", Files: []JournalDisk{{ID: "rw", Path: path}},
	}, err
}

func (d *fakeDisks) CarriesDisk(context.Context, []*types.Mount) (bool, error) {
	return d.carries, d.call("look into the image")
}

func (d *fakeDisks) PrepareVMDisk(_ context.Context, r VMDiskRequest) (*DiskSet, error) {
	if err := d.call("prepare VM disk"); err != nil {
		return nil, err
	}
	set := &DiskSet{Path: "/disk/x.raw"}
	for _, f := range []struct {
		id, kind string
		readOnly bool
	}{{"disk", spec.TypeRaw, false}, {"nvram", spec.TypeNVRAM, false}, {"firmware", spec.TypeFirmware, true}} {
		path := filepath.Join(r.Dir, f.id)
		if err := os.WriteFile(path, []byte("file"), 0o600); err != nil {
			return nil, err
		}
		set.Disks = append(set.Disks, spec.Disk{ID: f.id, Serial: f.id, Type: f.kind, ReadOnly: f.readOnly, Size: 4})
		set.Files = append(set.Files, JournalDisk{ID: f.id, Path: path})
	}
	return set, nil
}

func (d *fakeDisks) Forget(mounts []*types.Mount) error {
	for _, m := range mounts {
		if err := os.Remove(m.GetSource()); err != nil {
			return err
		}
	}
	return d.call("forget disk")
}
func (d *fakeDisks) Link(string, string) error                   { return os.ErrNotExist }
func (d *fakeDisks) Keep(string, string) error                   { return os.ErrPermission }
func (d *fakeDisks) Cleanup(_ context.Context, dir string) error { return os.RemoveAll(dir) }
