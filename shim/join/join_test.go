package join

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/api/types"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/shim"
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
