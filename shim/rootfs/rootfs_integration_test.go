//go:build integration

package rootfs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/rootfs/treelist"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func list(t *testing.T, dir string) string {
	t.Helper()
	var b bytes.Buffer
	must(t, treelist.Write(&b, dir))
	return b.String()
}

// everything makes a tree with all that a root file system may hold.
func everything(t *testing.T, dir string) {
	t.Helper()
	put(t, dir+"/a", "hard link")
	must(t, os.MkdirAll(dir+"/d/sub", 0o755))
	must(t, os.Link(dir+"/a", dir+"/d/b"))
	must(t, os.Link(dir+"/a", dir+"/d/sub/c"))
	put(t, dir+"/empty", "")
	put(t, dir+"/inline", strings.Repeat("i", 2048))
	put(t, dir+"/block", strings.Repeat("b", 2049))
	put(t, dir+"/page", strings.Repeat("p", 4096))
	put(t, dir+"/large", strings.Repeat("0123456789", 700_000))
	for i, sparse := range []struct{ size, at int64 }{{100 << 20, 50_000_001}, {300 << 20, 300<<20 - 3}, {1 << 20, -1},
		{10_000, 9_000}} {
		path := fmt.Sprintf("%s/sparse%d", dir, i)
		put(t, path, "")
		must(t, os.Truncate(path, sparse.size))
		if sparse.at >= 0 {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteAt([]byte("end"), sparse.at)
			must(t, err)
			must(t, f.Close())
		}
	}
	must(t, unix.Mknod(dir+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(dir+"/disk", unix.S_IFBLK|0o660, int(unix.Mkdev(259, 70_000))))
	must(t, unix.Mknod(dir+"/fifo", unix.S_IFIFO|0o600, 0))
	must(t, unix.Mknod(dir+"/sock", unix.S_IFSOCK|0o600, 0))
	must(t, os.Symlink("a", dir+"/short"))
	must(t, os.Symlink(strings.Repeat("l/", 2000), dir+"/long"))
	put(t, dir+"/"+strings.Repeat("n", 255), "long name")
	put(t, dir+"/"+strings.Repeat("n", 254)+"m", "long name")
	put(t, dir+"/!\u00fc \u4e16'\n\xff", "odd name")
	for i := range 700 {
		put(t, fmt.Sprintf("%s/many/%s%d", dir, strings.Repeat("x", i%90), i), fmt.Sprint(i))
	}
	must(t, os.Mkdir(dir+"/void", 0o700))
	must(t, os.Mkdir(dir+"/sticky", 0o755))
	must(t, unix.Chmod(dir+"/sticky", 0o1777))
	put(t, dir+"/setuid", "#!")
	must(t, os.Chown(dir+"/page", 100_000, 200_000))
	must(t, os.Lchown(dir+"/short", 4_294_967_294, 65_537))
	must(t, unix.Chmod(dir+"/setuid", 0o6755))
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	must(t, unix.Setxattr(dir+"/setuid", "security.capability", []byte(capability), 0))
	must(t, unix.Setxattr(dir+"/a", "user.one", []byte("1"), 0))
	must(t, unix.Setxattr(dir+"/a", "user.none", nil, 0))
	must(t, unix.Setxattr(dir+"/inline", "user.big", bytes.Repeat([]byte("v"), 3500), 0))
	must(t, unix.Setxattr(dir+"/d", "trusted.t", []byte("t"), 0))
	for path, at := range map[string]unix.Timespec{
		"/page": {Sec: 1_600_000_000, Nsec: 123_456_789}, "/large": {Sec: -315_619_200, Nsec: 5}, "/short": {Sec: 7, Nsec: 7},
		"/null": {Sec: 5_000_000_000, Nsec: 999_999_999}, "/void": {Sec: 1, Nsec: 1}, "/d": {Sec: 1_700_000_000, Nsec: 2},
	} {
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, dir+path, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

// upperOf lays changes over lower by a real overlayfs and returns the two layers.
func upperOf(t *testing.T, lower string, change func(dir string)) string {
	t.Helper()
	base := t.TempDir()
	for _, d := range []string{"fs", "work", "mnt"} {
		must(t, os.Mkdir(filepath.Join(base, d), 0o755))
	}
	upper, mnt := filepath.Join(base, "fs"), filepath.Join(base, "mnt")
	must(t, unix.Mount("overlay", mnt, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper,
		filepath.Join(base, "work"))))
	change(mnt)
	must(t, unix.Unmount(mnt, 0))
	return upper
}

func changes(t *testing.T) func(dir string) {
	return func(dir string) {
		must(t, os.Remove(dir+"/page"))
		must(t, os.RemoveAll(dir+"/d"))
		must(t, os.Mkdir(dir+"/d", 0o750)) // opaque
		put(t, dir+"/d/new", "new")
		put(t, dir+"/inline", "changed")
		must(t, os.Remove(dir+"/null"))
		must(t, os.Mkdir(dir+"/null", 0o755))
		put(t, dir+"/added/deep/er", "x")
	}
}

// overlayOf mounts disks as the guest does and lists the tree.
func overlayOf(t *testing.T, disks []Disk) string {
	t.Helper()
	var images []image
	for _, d := range disks {
		images = append(images, image{d.Path, d.Type})
	}
	var out string
	must(t, inPrivateNamespace(func() error {
		return useImages(t.Context(), images, t.TempDir(), func(dir string) error {
			var b bytes.Buffer
			err := treelist.Write(&b, dir)
			out = b.String()
			return err
		})
	}))
	return out
}

// viewOf lists directories as overlayfs joins them.
func viewOf(t *testing.T, dirs ...string) string {
	t.Helper()
	var out string
	must(t, inPrivateNamespace(func() error {
		return useOverlay(t.Context(), dirs, t.TempDir(), func(dir string) error {
			var b bytes.Buffer
			err := treelist.Write(&b, dir)
			out = b.String()
			return err
		})
	}))
	return out
}

func same(t *testing.T, what, want, got string) {
	t.Helper()
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s (-want +got):\n%.6000s", what, d)
	}
	if strings.Count(want, "\n") < 10 {
		t.Errorf("%s: the list has only %d lines", what, strings.Count(want, "\n"))
	}
}

func paths(t *testing.T) Paths {
	dir := t.TempDir()
	return Paths{Cache: openCache(t, dir, 1<<40), Dir: filepath.Join(dir, "vm"), WritableSize: 64 << 20}
}

func overlayMount(upper string, lowers ...string) []*types.Mount {
	return []*types.Mount{{Type: "overlay", Source: "overlay", Options: []string{
		"index=off", "workdir=" + filepath.Join(filepath.Dir(upper), "work"), "upperdir=" + upper,
		"lowerdir=" + strings.Join(lowers, ":")}}}
}

func TestTreeEquality(t *testing.T) {
	lower := t.TempDir()
	everything(t, lower)
	top := upperOf(t, lower, changes(t))
	t.Run("one directory", func(t *testing.T) {
		dst := paths(t)
		l, err := Prepare(t.Context(), []*types.Mount{{Type: "bind", Source: lower, Options: []string{"rbind", "rw"}}}, dst)
		must(t, err)
		same(t, "image of a directory", list(t, lower), overlayOf(t, l.Disks))
	})
	t.Run("chain", func(t *testing.T) {
		dst, upper := paths(t), filepath.Join(t.TempDir(), "fs")
		must(t, os.Mkdir(upper, 0o755))
		l, err := Prepare(t.Context(), overlayMount(upper, top, lower), dst)
		must(t, err)
		if len(l.Disks) != 1 || l.Writable != filepath.Join(filepath.Dir(upper), writableName) {
			t.Errorf("layers = %+v", l)
		}
		same(t, "image of a chain", viewOf(t, top, lower), overlayOf(t, l.Disks))
	})
	t.Run("upperdir with content", func(t *testing.T) {
		l, err := Prepare(t.Context(), overlayMount(top, lower), paths(t))
		must(t, err)
		if len(l.Disks) != 2 {
			t.Errorf("%d disks, want upper and chain", len(l.Disks))
		}
		same(t, "upper over chain", viewOf(t, top, lower), overlayOf(t, l.Disks))
	})
}

func TestChainIsSharedAndDeterministic(t *testing.T) {
	lower := t.TempDir()
	everything(t, lower)
	dst := paths(t)
	var digests []string
	for i := range 2 {
		upper := filepath.Join(t.TempDir(), "fs")
		must(t, os.Mkdir(upper, 0o755))
		l, err := Prepare(t.Context(), overlayMount(upper, lower), Paths{Cache: dst.Cache, Dir: fmt.Sprint(dst.Dir, i),
			WritableSize: 64 << 20})
		must(t, err)
		digests = append(digests, l.Disks[0].Digest)
	}
	// a cache of its own
	l, err := Prepare(t.Context(), overlayMount(filepath.Join(emptySnapshot(t), "fs"), lower), paths(t))
	must(t, err)
	if digests[0] != digests[1] || digests[0] != l.Disks[0].Digest {
		t.Errorf("digests differ: %v, %s", digests, l.Disks[0].Digest)
	}
	if n := entries(t, dst.Cache.path(verified)); n != 1 {
		t.Errorf("%d disks for one chain", n)
	}
}

func emptySnapshot(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "fs"), 0o755))
	return dir
}

func TestManyImagesAreMerged(t *testing.T) {
	dst := paths(t)
	var mounts []*types.Mount
	var dirs []string
	for i := range MaxDisks + 5 {
		dir := t.TempDir()
		put(t, dir+"/shared", fmt.Sprint(i))
		put(t, fmt.Sprintf("%s/own/%d", dir, i), "x")
		l, err := Prepare(t.Context(), []*types.Mount{{Type: "bind", Source: dir, Options: []string{"rbind"}}},
			Paths{Cache: dst.Cache, Dir: filepath.Join(t.TempDir(), "vm"), WritableSize: 64 << 20})
		must(t, err)
		mounts = append(mounts, &types.Mount{Type: "erofs", Source: l.Disks[0].Path, Options: []string{"ro", "loop"}})
		dirs = append(dirs, dir)
	}
	rw := filepath.Join(t.TempDir(), "rwlayer.img")
	mounts = append([]*types.Mount{{Type: "mkfs/ext4", Source: rw, Options: []string{"X-containerd.mkfs.fs=ext4",
		"X-containerd.mkfs.size=67108864", "rw", "loop"}}}, mounts...)
	mounts = append(mounts, &types.Mount{Type: "format/mkdir/overlay", Source: "overlay", Options: []string{
		"X-containerd.mkdir.path={{ mount 0 }}/upper:0755", "X-containerd.mkdir.path={{ mount 0 }}/work:0755",
		"workdir={{ mount 0 }}/work", "upperdir={{ mount 0 }}/upper", fmt.Sprintf("lowerdir={{ overlay 1 %d }}",
			MaxDisks+5)}})
	l, err := Prepare(t.Context(), mounts, dst)
	must(t, err)
	if len(l.Disks) != MaxDisks || l.Writable != rw || l.WritableSize != 64<<20 {
		t.Errorf("%d disks, writable %s of %d bytes", len(l.Disks), l.Writable, l.WritableSize)
	}
	same(t, "merged images", viewOf(t, dirs...), overlayOf(t, l.Disks))
}

func TestWritableDiskIsKept(t *testing.T) {
	lower := t.TempDir()
	put(t, lower+"/a", "a")
	snapshot := emptySnapshot(t)
	mounts, dst := overlayMount(filepath.Join(snapshot, "fs"), lower), paths(t)
	l, err := Prepare(t.Context(), mounts, dst)
	must(t, err)
	write := func(use func(dir string) error) {
		must(t, inPrivateNamespace(func() error {
			dir := t.TempDir()
			must(t, mountWritable(l.Writable, dir))
			defer unix.Unmount(dir, 0)
			return use(dir)
		}))
	}
	write(func(dir string) error { return os.WriteFile(dir+"/upper/kept", []byte("yes"), 0o600) })
	must(t, Release(dst.Dir))
	l, err = Prepare(t.Context(), mounts, dst)
	must(t, err)
	write(func(dir string) error {
		data, err := os.ReadFile(dir + "/upper/kept")
		if string(data) != "yes" {
			t.Errorf("second task finds %q", data)
		}
		_, statErr := os.Stat(dir + "/work")
		must(t, statErr)
		return err
	})
}
