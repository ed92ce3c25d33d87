package rootfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

func openCache(t *testing.T, dir string, size int64) *Cache {
	t.Helper()
	c, err := OpenCache(filepath.Join(dir, "cache"), size)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// links makes the directory that a VM keeps its disks in.
func links(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name, "layers")
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func content(text string) func(io.Writer, string) error {
	return func(w io.Writer, _ string) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func entries(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestCacheBuildsOnce(t *testing.T) {
	dir := t.TempDir()
	var builds atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		c, linked := openCache(t, dir, 1<<30), links(t, dir, fmt.Sprint("vm", i))
		wg.Go(func() {
			d, err := c.get(t.Context(), hashKey("k"), linked, func(w io.Writer, s string) error {
				builds.Add(1)
				return content("image")(w, s)
			})
			if err != nil {
				t.Errorf("get: %v", err)
				return
			}
			if data, err := os.ReadFile(d.Path); err != nil || string(data) != "image" {
				t.Errorf("disk holds %q, %v", data, err)
			}
		})
	}
	wg.Wait()
	if n := builds.Load(); n != 1 {
		t.Errorf("%d builds for one key, want 1", n)
	}
}

func TestCacheFailedBuildLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	c, linked := openCache(t, dir, 1<<30), links(t, dir, "vm")
	broken := errors.New("disk full")
	_, err := c.get(t.Context(), hashKey("k"), linked, func(w io.Writer, _ string) error {
		return errors.Join(broken, content("half")(w, ""))
	})
	if !errors.Is(err, broken) {
		t.Fatalf("get = %v, want the build's error", err)
	}
	for _, sub := range []string{verified, "chains", "tmp"} {
		if n := entries(t, c.path(sub)); n != 0 {
			t.Errorf("%d entries in %s after a failed build", n, sub)
		}
	}
	if n := entries(t, linked); n != 0 {
		t.Errorf("%d links of the VM after a failed build", n)
	}
	if _, err := c.get(t.Context(), hashKey("k"), linked, content("whole")); err != nil {
		t.Errorf("get after a failure: %v", err)
	}
}

func TestCacheCrashLeftoversAreRemoved(t *testing.T) {
	dir := t.TempDir()
	c := openCache(t, dir, 1<<30)
	dead := c.path("tmp", "build-dead")
	if err := os.MkdirAll(filepath.Join(dead, "tree"), 0o700); err != nil {
		t.Fatal(err)
	}
	alive, release, err := c.scratch()
	if err != nil {
		t.Fatal(err)
	}
	openCache(t, dir, 1<<30)
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a crash left is still there: %v", err)
	}
	if _, err := os.Stat(alive); err != nil {
		t.Errorf("the directory of a running build is gone: %v", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

func TestCacheEviction(t *testing.T) {
	dir := t.TempDir()
	c := openCache(t, dir, 3*4096)
	build := func(vm string) Disk {
		d, err := c.get(t.Context(), hashKey("chain", vm), links(t, dir, vm), content(strings.Repeat(vm, 1000)))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, vm := range []string{"a", "b", "c"} {
		build(vm)
	}
	if err := Release(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	build("d")
	if n := entries(t, c.path(verified)); n != 3 {
		t.Errorf("%d disks, want 3: the released one goes, those in use stay", n)
	}
	if n := entries(t, c.path("chains")); n != 3 {
		t.Errorf("%d chains, want 3", n)
	}
	build("e") // everything is in use
	if n := entries(t, c.path(verified)); n != 4 {
		t.Errorf("%d disks, want 4: a disk in use is never evicted", n)
	}
	if _, err := os.Stat(filepath.Join(dir, "a", "layers")); err != nil {
		t.Error(err)
	}
}

func TestCacheRebuildsWhatIsGone(t *testing.T) {
	dir := t.TempDir()
	c := openCache(t, dir, 1<<30)
	d, err := c.get(t.Context(), hashKey("k"), links(t, dir, "a"), content("image"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(c.path(verified, filepath.Base(d.Path))); err != nil {
		t.Fatal(err)
	}
	again, err := c.get(t.Context(), hashKey("k"), links(t, dir, "b"), content("image"))
	if err != nil || again.Digest != d.Digest {
		t.Errorf("get = %+v, %v, want digest %s again", again, err, d.Digest)
	}
}

func TestCacheLockHonoursContext(t *testing.T) {
	c := openCache(t, t.TempDir(), 1<<30)
	unlock, err := c.lock(t.Context(), "aa")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.lock(ctx, "aa"); !errors.Is(err, context.Canceled) {
		t.Errorf("lock = %v, want Canceled", err)
	}
}

func TestFileDigest(t *testing.T) {
	dir := t.TempDir()
	c, path := openCache(t, dir, 1<<30), filepath.Join(dir, "layer.erofs")
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := c.file(t.Context(), image{path, "erofs"})
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.file(t.Context(), image{path, "erofs"})
	if err != nil || first != second {
		t.Errorf("second look gives %+v, %v, want %+v", second, err, first)
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte("y"), 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	changed, err := c.file(t.Context(), image{path, "erofs"})
	if err != nil || changed.Digest == first.Digest {
		t.Errorf("a changed file has digest %s, %v", changed.Digest, err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.file(t.Context(), image{path, "erofs"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a file that is no disk: %v, want InvalidArgument", err)
	}
}

func TestReadPlan(t *testing.T) {
	ext4 := &types.Mount{Type: "mkfs/ext4", Source: "/s/5/rwlayer.img", Options: []string{"X-containerd.mkfs.fs=ext4",
		"X-containerd.mkfs.size=67108864", "rw", "loop"}}
	layer := func(n int) *types.Mount {
		return &types.Mount{Type: "erofs", Source: fmt.Sprintf("/s/%d/layer.erofs", n), Options: []string{"ro", "loop"}}
	}
	overlay := func(kind string, options ...string) *types.Mount {
		return &types.Mount{Type: kind, Source: "overlay", Options: options}
	}
	bind := func(dir string) *types.Mount {
		return &types.Mount{Type: "bind", Source: dir, Options: []string{"rbind", "ro"}}
	}
	three := []image{{"/s/4/layer.erofs", "erofs"}, {"/s/3/layer.erofs", "erofs"}, {"/s/1/layer.erofs", "erofs"}}
	tests := []struct {
		name   string
		mounts []*types.Mount
		want   plan
	}{
		{"overlayfs", []*types.Mount{overlay("overlay", "index=off", "workdir=/s/3/work", "upperdir=/s/3/fs",
			"lowerdir=/s/2/fs:/s/1/fs")},
			plan{upper: "/s/3/fs", dirs: []string{"/s/2/fs", "/s/1/fs"}, writable: "/s/3/godwit-rw.ext4"}},
		{"view", []*types.Mount{overlay("overlay", "lowerdir=/s/2/fs:/s/1/fs")}, plan{dirs: []string{"/s/2/fs", "/s/1/fs"}}},
		{"native", []*types.Mount{{Type: "bind", Source: "/snapshots/4", Options: []string{"rbind", "rw"}}},
			plan{dirs: []string{"/snapshots/4"}, unique: true, own: true}},
		{"a directory", []*types.Mount{{Type: "bind", Source: "/s/4", Options: []string{"rbind", "rw"}}},
			plan{dirs: []string{"/s/4"}, unique: true}},
		{"blockfile", []*types.Mount{{Type: "ext4", Source: "/snapshots/4", Options: []string{"loop", "rw"}}},
			plan{files: []image{{"/snapshots/4", "ext4"}}, own: true}},
		{"view of blockfile", []*types.Mount{{Type: "ext4", Source: "/snapshots/4", Options: []string{"loop", "ro"}}},
			plan{files: []image{{"/snapshots/4", "ext4"}}}},
		{"erofs with directory", []*types.Mount{layer(4), layer(3), layer(1),
			overlay("format/mkdir/overlay", "workdir=/s/5/work", "upperdir=/s/5/fs", "X-containerd.mkdir.path=/s/5/fs:0755",
				"lowerdir={{ overlay 0 2 }}")},
			plan{files: three, upper: "/s/5/fs", writable: "/s/5/godwit-rw.ext4"}},
		{"erofs with mkfs", []*types.Mount{ext4, layer(4), layer(3), layer(1),
			overlay("format/mkdir/overlay", "X-containerd.mkdir.path={{ mount 0 }}/upper:0755", "workdir={{ mount 0 }}/work",
				"upperdir={{ mount 0 }}/upper", "lowerdir={{ overlay 1 3 }}")},
			plan{files: three, writable: "/s/5/rwlayer.img", writableSize: 64 << 20}},
		{"erofs upside down", []*types.Mount{layer(1), layer(3), layer(4),
			overlay("format/overlay", "lowerdir={{ overlay 2 0 }}")}, plan{files: three}},
		{"overlay over a bind", []*types.Mount{bind("/h/a"), overlay("format/overlay", "upperdir=/s/5/fs",
			"workdir=/s/5/work", "lowerdir={{ mount 0 }}:/s/1/fs")},
			plan{dirs: []string{"/h/a", "/s/1/fs"}, bound: true, upper: "/s/5/fs", writable: "/s/5/godwit-rw.ext4"}},
		{"overlay of binds, written to one", []*types.Mount{bind("/h/w"), bind("/h/a"), bind("/h/b"),
			overlay("format/mkdir/overlay", "X-containerd.mkdir.path={{ mount 0 }}/upper:0755", "workdir={{ mount 0 }}/work",
				"upperdir={{ mount 0 }}/upper", "lowerdir={{ overlay 1 2 }}")},
			plan{dirs: []string{"/h/a", "/h/b"}, bound: true, upper: "/h/w/upper", writable: "/h/w/godwit-rw.ext4"}},
		{"bind of an image", []*types.Mount{layer(4), {Type: "format/bind", Source: "{{ mount 0 }}",
			Options: []string{"ro", "rbind"}}}, plan{files: three[:1]}},
		{"bind of a bind", []*types.Mount{bind("/h/a"), {Type: "format/bind", Source: "{{ mount 0 }}",
			Options: []string{"ro", "rbind"}}}, plan{dirs: []string{"/h/a"}, unique: true}},
		{"one layer", []*types.Mount{layer(4), overlay("format/overlay", "lowerdir={{ mount 0 }}")}, plan{files: three[:1]}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readPlan(tt.mounts)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, *got, cmp.AllowUnexported(plan{}, image{})); d != "" {
				t.Errorf("plan (-want +got):\n%s", d)
			}
		})
	}
}

func TestReadPlanRefuses(t *testing.T) {
	erofs := &types.Mount{Type: "erofs", Source: "/l.erofs", Options: []string{"ro", "loop"}}
	over := func(options ...string) []*types.Mount {
		return []*types.Mount{erofs, {Type: "format/overlay", Source: "overlay", Options: options}}
	}
	tests := []struct {
		name   string
		mounts []*types.Mount
		is     func(error) bool
		want   string
	}{
		{"nothing", nil, errdefs.IsInvalidArgument, "no root file system"},
		{"zfs", []*types.Mount{{Type: "zfs", Source: "p"}}, errdefs.IsNotImplemented, `"zfs"`},
		{"btrfs", []*types.Mount{{Type: "btrfs", Source: "/dev/x"}}, errdefs.IsNotImplemented, `"btrfs"`},
		{"transform", []*types.Mount{{Type: "crypt/ext4", Source: "/x"}}, errdefs.IsNotImplemented, `"crypt"`},
		{"two without overlay", []*types.Mount{erofs, erofs}, errdefs.IsInvalidArgument, "2 mounts"},
		{"bind of a mount that is not there", []*types.Mount{erofs, {Type: "format/bind", Source: "{{ mount 3 }}"}},
			errdefs.IsInvalidArgument, "mount 3"},
		{"bind into a mount", []*types.Mount{erofs, {Type: "format/bind", Source: "{{ mount 0 }}/etc"}},
			errdefs.IsInvalidArgument, "{{ mount 0 }}/etc"},
		{"bind of a relative path", []*types.Mount{{Type: "bind", Source: "a"},
			{Type: "format/overlay", Options: []string{"lowerdir={{ mount 0 }}"}}}, errdefs.IsInvalidArgument, `"a"`},
		{"devices", []*types.Mount{{Type: "erofs", Source: "/m", Options: []string{"device=/a"}}}, errdefs.IsNotImplemented,
			"device=/a"},
		{"relative", []*types.Mount{{Type: "bind", Source: "a", Options: []string{"rbind"}}}, errdefs.IsInvalidArgument,
			`"a"`},
		{"out of range", over("lowerdir={{ overlay 0 3 }}"), errdefs.IsInvalidArgument, "overlay 0 3"},
		{"unknown template", over("lowerdir={{ source 0 }}"), errdefs.IsNotImplemented, "source 0"},
		{"no lowerdir", over("upperdir=/u"), errdefs.IsInvalidArgument, "without lowerdir"},
		{"option", over("lowerdir={{ mount 0 }}", "metacopy=on"), errdefs.IsNotImplemented, "metacopy"},
		{"userxattr", over("lowerdir={{ mount 0 }}", "userxattr"), errdefs.IsNotImplemented, "userxattr"},
		{"mixed", over("lowerdir={{ mount 0 }}:/d"), errdefs.IsInvalidArgument, "images and directories"},
		{"erofs as writable", over("lowerdir={{ mount 0 }}", "upperdir={{ mount 0 }}/upper"), errdefs.IsNotImplemented,
			"writable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readPlan(tt.mounts)
			if !tt.is(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("readPlan = %v, want its class and %q", err, tt.want)
			}
		})
	}
}
