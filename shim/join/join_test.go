package join

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/api/types"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/journal"
)

// The writable disk next to an overlay's upperdir is forgotten, the layers are not; mounts that
// no task of ours boots from are left alone.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	upper, lower := filepath.Join(dir, "1", "fs"), filepath.Join(dir, "0", "fs")
	for _, d := range []string{upper, lower, filepath.Join(dir, "1", "work")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	stale := filepath.Join(dir, "1", "godwit-rw.ext4")
	if err := os.WriteFile(stale, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &disks{cfg: &config.Config{StateDir: t.TempDir()}}
	forget := func(mounts ...*types.Mount) error {
		return d.Forget(shim.DisksRequest{Namespace: "ns", ID: "vm", Mounts: mounts, Dir: t.TempDir()})
	}
	for range 2 {
		err := forget(&types.Mount{Type: "overlay", Source: "overlay", Options: []string{
			"workdir=" + filepath.Join(dir, "1", "work"), "upperdir=" + upper, "lowerdir=" + lower,
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the disk is left: %v", err)
	}
	if _, err := os.Stat(lower); err != nil {
		t.Error(err)
	}
	if err := forget(&types.Mount{Type: "other", Source: lower}); err != nil {
		t.Error(err)
	}
	if err := forget(); err != nil {
		t.Error(err)
	}
}

// What a VM from another node has left is for its own container. One that was made anew under its id has no disks.
func TestDisksAreLeftForOneContainer(t *testing.T) {
	d := &disks{cfg: &config.Config{StateDir: t.TempDir()}}
	dir := t.TempDir()
	disk := filepath.Join(dir, "rw.img")
	if err := os.WriteFile(disk, []byte("written"), 0o600); err != nil {
		t.Fatal(err)
	}
	set := &shim.DiskSet{Disks: []spec.Disk{{ID: "rw", Type: "ext4"}}, Writable: "rw",
		Files: []journal.Disk{{ID: "rw", Path: disk}}}
	err := d.Forget(shim.DisksRequest{Namespace: "ns", ID: "vm", Container: "db/1", Dir: dir})
	if err == nil {
		err = d.KeepWoken("ns", "vm", dir, set)
	}
	if err != nil {
		t.Fatal(err)
	}
	for container, want := range map[string]bool{"db/1": true, "db/2": false, "": false} {
		req := shim.DisksRequest{Namespace: "ns", ID: "vm", Container: container, Dir: t.TempDir()}
		got, err := d.Prepare(t.Context(), req)
		if (err == nil) != want || want && len(got.Files) != 1 {
			t.Errorf("container %q has %+v, %v", container, got, err)
		}
	}
}
