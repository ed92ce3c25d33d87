package erofs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	reader "github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// plant makes a tree that needs no right to make.
func plant(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	put := func(name, text string) {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o640))
	}
	for _, n := range []int{0, 1, 2047, 2048, 2049, 4095, 4096, 4097, 3_000_000} {
		put(fmt.Sprintf("size/%d", n), strings.Repeat("x", n))
	}
	for i := range 500 {
		put(fmt.Sprintf("many/%s%d", strings.Repeat("n", i%120), i), fmt.Sprint(i))
	}
	put("deep/a/b/c/d", "deep")
	must(t, os.Link(filepath.Join(dir, "deep/a/b/c/d"), filepath.Join(dir, "same")))
	must(t, os.Symlink("deep/a", filepath.Join(dir, "link")))
	put("sparse", "")
	must(t, os.Truncate(filepath.Join(dir, "sparse"), 300<<20))
	f, err := os.OpenFile(filepath.Join(dir, "sparse"), os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("data"), 299<<20)
	must(t, err)
	must(t, f.Close())
	must(t, os.Chtimes(filepath.Join(dir, "same"), time.Unix(1, 0), time.Unix(1_600_000_000, 123_456_789)))
	return dir
}

func build(t *testing.T, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, Write(t.Context(), &b, dir))
	if b.Len()%blockSize != 0 {
		t.Errorf("the image has %d bytes, not whole blocks", b.Len())
	}
	return b.Bytes()
}

// An independent reader finds the tree that was written; the kernel's is asked in the
// integration test of package rootfs.
func TestImageEqualsTree(t *testing.T) {
	dir := plant(t)
	img, err := reader.Open(bytes.NewReader(build(t, dir)))
	must(t, err)
	names := 0
	must(t, fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		must(t, err)
		names++
		want, err := d.Info()
		must(t, err)
		got, err := fs.Lstat(img, name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return nil
		}
		// This reader leaves bits in Mode that mean nothing there.
		if got.Mode().String() != want.Mode().String() || !got.ModTime().Equal(want.ModTime()) {
			t.Errorf("%s is %v %v, want %v %v", name, got.Mode(), got.ModTime(), want.Mode(), want.ModTime())
		}
		if d.Type().IsRegular() && name != "sparse" {
			wantData, err := os.ReadFile(filepath.Join(dir, name))
			must(t, err)
			if data, err := fs.ReadFile(img, name); err != nil || !bytes.Equal(data, wantData) {
				t.Errorf("%s has %d bytes (%v), want %d", name, len(data), err, len(wantData))
			}
		}
		return nil
	}))
	if names < 520 {
		t.Errorf("only %d names compared", names)
	}
	if target, err := fs.ReadLink(img, "link"); err != nil || target != "deep/a" {
		t.Errorf("link to %q, %v", target, err)
	}
}

func TestImageIsDeterministicAndSparse(t *testing.T) {
	dir := plant(t)
	first := build(t, dir)
	if !bytes.Equal(first, build(t, dir)) {
		t.Error("two images of one tree differ")
	}
	if len(first) > 8<<20 {
		t.Errorf("the image has %d bytes: holes are stored", len(first))
	}
	must(t, os.Chtimes(filepath.Join(dir, "link"), time.Unix(2, 0), time.Unix(2, 0)))
	if bytes.Equal(first, build(t, dir)) {
		t.Error("another tree has the same image")
	}
}

func TestInodesKeepTheirBlock(t *testing.T) {
	root := &tree{ctx: t.Context(), root: plant(t), links: make(map[fileID]*node)}
	n, err := root.read(root.root)
	must(t, err)
	img := &image{tree: root}
	img.place(n)
	end := int64(firstInode)
	for _, n := range root.all {
		if n.offset%slotSize != 0 || n.offset < end || n.offset/blockSize != (n.offset+inodeSize-1)/blockSize {
			t.Errorf("inode of %s at %d, after %d", n.path, n.offset, end)
		}
		end = n.offset + inodeSize + int64(len(n.xattrs))
		if n.layout == layoutInline {
			end += n.size
			if n.offset/blockSize != (end-1)/blockSize {
				t.Errorf("%s is inline over a block's end", n.path)
			}
		}
	}
}

func TestXattrArea(t *testing.T) {
	area, err := appendXattr(make([]byte, 12), "security.capability", []byte("12345"))
	must(t, err)
	want := "\x0a\x06\x05\x00capability12345\x00"
	if string(area[12:]) != want || len(area)%4 != 0 {
		t.Errorf("area %q, want %q", area[12:], want)
	}
	for name, is := range map[string]func(error) bool{
		"system.other": errdefs.IsNotImplemented, "system.posix_acl_accessory": errdefs.IsNotImplemented,
		"user." + strings.Repeat("x", 256): errdefs.IsOutOfRange,
	} {
		if _, err := appendXattr(nil, name, nil); !is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// limited fails once n bytes are written.
type limited struct{ n int }

var errFull = errors.New("no space")

func (l *limited) Write(p []byte) (int, error) {
	if l.n -= len(p); l.n < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestWriteFails(t *testing.T) {
	dir := plant(t)
	size := len(build(t, dir))
	for n := 0; n < size; n += size / 7 {
		if err := Write(t.Context(), &limited{n}, dir); !errors.Is(err, errFull) {
			t.Errorf("a writer that fails after %d bytes: %v", n, err)
		}
	}
	if err := Write(t.Context(), io.Discard, filepath.Join(dir, "same")); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a file as tree: %v, want InvalidArgument", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Write(ctx, io.Discard, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled context: %v", err)
	}
}

// truncating shortens a file of the tree as soon as the image is begun.
type truncating struct {
	path string
	once bool
}

func (w *truncating) Write(p []byte) (int, error) {
	if !w.once {
		w.once = true
		if err := unix.Truncate(w.path, 10); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func TestChangingTreeIsAnError(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "a"), bytes.Repeat([]byte("x"), 8<<20), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "b"), bytes.Repeat([]byte("x"), 8<<20), 0o600))
	if err := Write(t.Context(), &truncating{path: filepath.Join(dir, "b")}, dir); !errdefs.IsAborted(err) {
		t.Errorf("Write = %v, want Aborted", err)
	}
}
