package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
)

// fakeKept is what is kept of disks for the next task of the container.
type fakeKept struct {
	content map[string]string // by id
	full    bool              // there is no room
}

type fakeDisks struct {
	*faults
	carries bool
	kept    *fakeKept
}

func (d *fakeDisks) Prepare(_ context.Context, r DisksRequest) (*DiskSet, error) {
	if err := d.call("prepare disks"); err != nil {
		return nil, err
	}
	path := filepath.Join(r.Dir, "rw.img")
	err := os.WriteFile(path, []byte("disk"), 0o600)
	return &DiskSet{
		Disks: []spec.Disk{{ID: "rw", Serial: "rw", Type: "ext4", Size: 4}}, Writable: "rw",
		Files: []journal.Disk{{ID: "rw", Path: path}},
	}, err
}

// PrepareImage has one disk for each source of the mounts.
func (d *fakeDisks) PrepareImage(_ context.Context, r DisksRequest) (*DiskSet, error) {
	if err := d.call("prepare image"); err != nil {
		return nil, err
	}
	set := new(DiskSet)
	for _, m := range r.Mounts {
		dgst := digest.FromString(m.GetSource())
		id := "i" + dgst.Encoded()[:19]
		path := filepath.Join(r.Dir, id)
		if err := os.WriteFile(path, []byte(m.GetSource()), 0o600); err != nil {
			return nil, err
		}
		set.Disks = append(set.Disks, spec.Disk{ID: id, Serial: id, ReadOnly: true, Type: "erofs",
			Size: int64(len(m.GetSource())), Digest: dgst.String()})
		set.Layers, set.Files = append(set.Layers, id), append(set.Files, journal.Disk{ID: id, Path: path})
	}
	return set, nil
}

func (d *fakeDisks) PrepareScratch(_ context.Context, r DisksRequest) (*DiskSet, error) {
	if err := d.call("prepare scratch"); err != nil {
		return nil, err
	}
	path := filepath.Join(r.Dir, "rw.img")
	err := os.WriteFile(path, []byte("disk"), 0o600)
	return &DiskSet{
		Disks: []spec.Disk{{ID: "rw", Serial: "rw", Type: "ext4", Size: r.WritableSize}}, Writable: "rw",
		Files: []journal.Disk{{ID: "rw", Path: path}},
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
		d := spec.Disk{ID: f.id, Serial: f.id, Type: f.kind, ReadOnly: f.readOnly, Size: 4}
		if f.readOnly {
			d.Digest = digest.FromString("file").String()
		}
		set.Disks = append(set.Disks, d)
		set.Files = append(set.Files, journal.Disk{ID: f.id, Path: path})
	}
	return set, nil
}

// KeepWoken keeps a copy of what the files have.
func (d *fakeDisks) KeepWoken(_, _, _ string, set *DiskSet) error {
	if d.kept.full {
		return errdefs.ErrResourceExhausted
	}
	for _, f := range set.Files {
		data, err := os.ReadFile(f.Path)
		if errors.Is(err, os.ErrNotExist) {
			continue // freed, after it was kept
		}
		if err != nil {
			return err
		}
		if d.kept.content == nil {
			d.kept.content = map[string]string{}
		}
		d.kept.content[f.ID] = string(data)
	}
	return nil
}

func (d *fakeDisks) ForgetKept(string, string) error {
	d.kept.content = nil
	return nil
}

func (d *fakeDisks) Forget(req DisksRequest) error {
	for _, m := range req.Mounts {
		if err := os.Remove(m.GetSource()); err != nil {
			return err
		}
	}
	return d.call("forget disk")
}

func (d *fakeDisks) Link(context.Context, string, string) error { return os.ErrNotExist }

// Keep is a cache with nothing in it that has room until the call "keep disk" fails.
func (d *fakeDisks) Keep(_ context.Context, dgst string, from io.Reader, path string) error {
	if err := d.call("keep disk"); err != nil {
		return err
	}
	data, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	if got := digest.FromBytes(data); got.String() != dgst {
		return fmt.Errorf("%d bytes of %s, not %s: %w", len(data), got, dgst, errdefs.ErrDataLoss)
	}
	return os.WriteFile(path, data, 0o400)
}

func (d *fakeDisks) Cleanup(_ context.Context, dir string) error { return os.RemoveAll(dir) }
