package rootfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
)

func plain(t *testing.T, dir string) []*types.Mount {
	t.Helper()
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	return []*types.Mount{{Type: "bind", Source: root, Options: []string{"rbind", "rw"}}}
}

// A directory that may be written is built anew each time.
func TestPrepareUniqueDirectory(t *testing.T) {
	dir := t.TempDir()
	mounts, dst := plain(t, dir), Paths{Cache: openCache(t, dir, 1<<30), Dir: filepath.Join(dir, "vm"), WritableSize: 64 << 20}
	first, err := Prepare(t.Context(), mounts, dst)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mounts[0].Source, "etc", "motd"), []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := Prepare(t.Context(), mounts, dst)
	if err != nil || second.Disks[0].Digest == first.Disks[0].Digest {
		t.Errorf("a changed directory has the disk %s again, %v", second.Disks[0].Digest, err)
	}
	if first.WritableSize != 64<<20 || first.Writable != second.Writable {
		t.Errorf("writable disks %+v, %+v", first, second)
	}
	disks, layers, rw, files := second.Describe()
	if len(disks) != 2 || disks[0].ID != layers[0] || disks[1].ID != rw || files[layers[0]] != second.Disks[0].Path || files[rw] != second.Writable || disks[0].Digest == "" {
		t.Errorf("described as %+v, %v, %s, %v", disks, layers, rw, files)
	}
	if err := Release(dst.Dir); err != nil {
		t.Error(err)
	}
	if err := Release(dst.Dir); err != nil {
		t.Errorf("second release: %v", err)
	}
}

// N-14: each step that fails leaves nothing of this VM behind.
func TestPrepareFailsAtEachStep(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	tests := []struct {
		name   string
		ctx    context.Context
		spoil  func(t *testing.T, dir string, mounts []*types.Mount, dst *Paths)
		is     func(error) bool
		before bool // a writable disk is there already, and must stay
	}{
		{"no such directory", t.Context(), func(_ *testing.T, _ string, m []*types.Mount, _ *Paths) { m[0].Source += "/none" },
			func(err error) bool { return errors.Is(err, os.ErrNotExist) }, true},
		{"canceled build", canceled, func(*testing.T, string, []*types.Mount, *Paths) {},
			func(err error) bool { return errors.Is(err, context.Canceled) }, false},
		{"cache is gone", t.Context(), func(t *testing.T, dir string, _ []*types.Mount, _ *Paths) {
			if err := os.RemoveAll(filepath.Join(dir, "cache", "disks")); err != nil {
				t.Fatal(err)
			}
		}, func(err error) bool { return errors.Is(err, os.ErrNotExist) }, false},
		{"writable disk too small", t.Context(), func(_ *testing.T, _ string, _ []*types.Mount, dst *Paths) { dst.WritableSize = 1 },
			func(err error) bool { return err != nil }, false},
		{"writable disk is a directory", t.Context(), func(t *testing.T, _ string, _ []*types.Mount, dst *Paths) {
			if err := os.MkdirAll(filepath.Join(dst.Dir, writableName), 0o700); err != nil {
				t.Fatal(err)
			}
		}, errdefs.IsInvalidArgument, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			mounts, dst := plain(t, dir), Paths{Cache: openCache(t, dir, 1<<30), Dir: filepath.Join(dir, "vm"), WritableSize: 64 << 20}
			writable := filepath.Join(dst.Dir, writableName)
			tt.spoil(t, dir, mounts, &dst)
			if tt.before {
				if err := os.MkdirAll(dst.Dir, 0o700); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(writable); err != nil {
					if err := os.WriteFile(writable, []byte("state"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := Prepare(tt.ctx, mounts, dst); !tt.is(err) {
				t.Errorf("Prepare = %v", err)
			}
			if n := entries(t, dst.Cache.path("tmp")); n != 0 {
				t.Errorf("%d entries in tmp", n)
			}
			if _, err := os.Stat(filepath.Join(dst.Dir, "layers")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("links of the VM stay: %v", err)
			}
			if _, err := os.Stat(writable); (err == nil) != tt.before {
				t.Errorf("writable disk is there: %v, want %v", err == nil, tt.before)
			}
			if n := entries(t, dst.Dir); n != map[bool]int{true: 1}[tt.before] {
				t.Errorf("%d entries in the VM's directory", n)
			}
		})
	}
}
