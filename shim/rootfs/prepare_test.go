package rootfs

import (
	"bytes"
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
	mounts, dst := plain(t, dir), Paths{Cache: openCache(t, dir, 1<<30), Dir: filepath.Join(dir, "vm"),
		WritableSize: 64 << 20}
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
	if len(disks) != 2 || disks[0].ID != layers[0] || disks[1].ID != rw || files[layers[0]] != second.Disks[0].Path ||
		files[rw] != second.Writable || disks[0].Digest == "" {
		t.Errorf("described as %+v, %v, %s, %v", disks, layers, rw, files)
	}
	if err := Release(dst.Dir); err != nil {
		t.Error(err)
	}
	if err := Release(dst.Dir); err != nil {
		t.Errorf("second release: %v", err)
	}
}

// Each step that fails leaves nothing of this VM.
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
		{"no such directory", t.Context(), func(_ *testing.T, _ string, m []*types.Mount, _ *Paths) {
			m[0].Source += "/none"
		},
			func(err error) bool { return errors.Is(err, os.ErrNotExist) }, true},
		{"canceled build", canceled, func(*testing.T, string, []*types.Mount, *Paths) {},
			func(err error) bool { return errors.Is(err, context.Canceled) }, false},
		{"cache is gone", t.Context(), func(t *testing.T, dir string, _ []*types.Mount, _ *Paths) {
			if err := os.RemoveAll(filepath.Join(dir, "cache", verified)); err != nil {
				t.Fatal(err)
			}
		}, func(err error) bool { return errors.Is(err, os.ErrNotExist) }, false},
		{"writable disk too small", t.Context(), func(_ *testing.T, _ string, _ []*types.Mount, dst *Paths) {
			dst.WritableSize = 1
		},
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
			mounts, dst := plain(t, dir), Paths{Cache: openCache(t, dir, 1<<30), Dir: filepath.Join(dir, "vm"),
				WritableSize: 64 << 20}
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

// The erofs snapshotter's files are used as they are, in the order of its template.
func TestPrepareErofsSnapshots(t *testing.T) {
	dir := t.TempDir()
	dst := Paths{Cache: openCache(t, dir, 1<<30), Dir: filepath.Join(dir, "vm"), WritableSize: 64 << 20}
	snapshot := filepath.Join(dir, "5")
	if err := os.Mkdir(snapshot, 0o700); err != nil {
		t.Fatal(err)
	}
	var layers []*types.Mount
	for _, name := range []string{"top", "middle", "bottom"} {
		path := filepath.Join(dir, name+".erofs")
		if err := os.WriteFile(path, bytes.Repeat([]byte(name[:1]), 8192), 0o600); err != nil {
			t.Fatal(err)
		}
		layers = append(layers, &types.Mount{Type: "erofs", Source: path, Options: []string{"ro", "loop"}})
	}
	rw := filepath.Join(snapshot, "rwlayer.img")
	mkfs := &types.Mount{Type: "mkfs/ext4", Source: rw, Options: []string{"X-containerd.mkfs.fs=ext4",
		"X-containerd.mkfs.size=128MiB", "rw", "loop"}}
	overlay := func(options ...string) *types.Mount {
		return &types.Mount{Type: "format/mkdir/overlay", Source: "overlay", Options: options}
	}
	tests := []struct {
		name, writable string
		size           int64
		mounts         []*types.Mount
	}{
		{"image for writes", rw, 128 << 20, append(append([]*types.Mount{mkfs}, layers...),
			overlay("workdir={{ mount 0 }}/work", "upperdir={{ mount 0 }}/upper", "lowerdir={{ overlay 1 3 }}"))},
		{"directory for writes", filepath.Join(snapshot, writableName), 64 << 20, append(append([]*types.Mount{}, layers...),
			overlay("X-containerd.mkdir.path="+snapshot+"/fs:0755", "workdir="+snapshot+"/work", "upperdir="+snapshot+"/fs",
				"lowerdir={{ overlay 0 2 }}"))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := Prepare(t.Context(), tt.mounts, dst)
			if err != nil {
				t.Fatal(err)
			}
			if l.Writable != tt.writable || l.WritableSize != tt.size || len(l.Disks) != len(layers) {
				t.Fatalf("layers = %+v", l)
			}
			for i, d := range l.Disks {
				if d.Path != layers[i].Source || d.Size != 8192 || d.Type != "erofs" || d.Digest == "" {
					t.Errorf("disk %d = %+v, want %s", i, d, layers[i].Source)
				}
			}
			if path, err := Writable(tt.mounts); err != nil || path != l.Writable {
				t.Errorf("Writable = %s, %v, want %s", path, err, l.Writable)
			}
			if info, err := os.Stat(l.Writable); err != nil || info.Size() != tt.size || info.Mode().Perm() != 0o600 {
				t.Errorf("writable disk: %v, %v", info, err)
			}
		})
	}
}

// A disk that is made has the room in addition to its size; one that is there stays as it is.
func TestPrepareWithRoom(t *testing.T) {
	dir := t.TempDir()
	mounts, dst := plain(t, dir), Paths{Cache: openCache(t, dir, 1<<30), Dir: filepath.Join(dir, "vm"),
		WritableSize: 64 << 20, Room: 128 << 20}
	for range 2 {
		l, err := Prepare(t.Context(), mounts, dst)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(l.Writable)
		if err != nil || l.WritableSize != 256<<20 || info.Size() != l.WritableSize {
			t.Errorf("%d bytes, %v", l.WritableSize, err)
		}
	}
}
