package rootfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
)

// left puts a file where a build before this one kept the disk of that digest.
func left(t *testing.T, c *Cache, d digest.Digest, text string) string {
	t.Helper()
	path := c.path(unverified, "sha256-"+d.Encoded()+".erofs")
	if err := os.WriteFile(path, []byte(text), 0o444); err != nil {
		t.Fatal(err)
	}
	return path
}

func holds(t *testing.T, path, text string) {
	t.Helper()
	if data, err := os.ReadFile(path); err != nil || string(data) != text {
		t.Errorf("%s holds %q, %v; want %q", filepath.Base(path), data, err, text)
	}
}

// What is kept under a digest is its content, whatever lay at the VM's path. Nothing is kept of
// other bytes, nor of what ends with an error.
func TestKeepHashes(t *testing.T) {
	dir := t.TempDir()
	c, linked := openCache(t, dir, 1<<30), links(t, dir, "vm")
	right, path := digest.FromString("right").String(), filepath.Join(linked, "layer0.img")
	if err := c.Keep(t.Context(), right, strings.NewReader("wrong"), path); !errdefs.IsDataLoss(err) {
		t.Errorf("other bytes: %v, want DataLoss", err)
	}
	if err := c.Keep(t.Context(), "sha256:../../etc/passwd", strings.NewReader("right"), path); !errdefs.IsInvalidArgument(
		err) {
		t.Errorf("a path: %v, want InvalidArgument", err)
	}
	if err := c.Link(t.Context(), right, path); !errors.Is(err, fs.ErrNotExist) || entries(t, linked) != 0 ||
		entries(t, c.path("tmp")) != 0 {
		t.Errorf("after a lie: %v, %d links, %d in tmp", err, entries(t, linked), entries(t, c.path("tmp")))
	}
	if err := os.WriteFile(path, []byte("stale"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Keep(t.Context(), right, strings.NewReader("right"), path); err != nil {
			t.Fatal(err)
		}
		holds(t, path, "right")
	}
	other := filepath.Join(links(t, dir, "other"), "layer0.img")
	if err := c.Link(t.Context(), right, other); err != nil {
		t.Fatal(err)
	}
	holds(t, other, "right")
	if info, err := os.Stat(other); err != nil || info.Mode() != 0o444 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// A disk that an earlier build has left is compared with its digest before its first use,
// and once: what many VMs want at the same time, and what a chain of that build leads to.
func TestOldDiskIsVerifiedOnce(t *testing.T) {
	dir := t.TempDir()
	c := openCache(t, dir, 1<<30)
	d := digest.FromString("image")
	old, key := left(t, c, d, "image"), hashKey("k")
	held := filepath.Join(links(t, dir, "before"), "held")
	writer, err := os.OpenFile(old, os.O_RDWR, 0)
	if err = errors.Join(err, os.Link(old, held), os.Symlink("../disks/sha256-"+d.Encoded()+".erofs",
		c.path("chains", key))); err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	var wg sync.WaitGroup
	for _, vm := range []string{"a", "b", "c", "d"} {
		path := filepath.Join(links(t, dir, vm), "x")
		wg.Go(func() {
			if err := openCache(t, dir, 1<<30).Link(t.Context(), d.String(), path); err != nil {
				t.Errorf("link: %v", err)
			}
		})
	}
	wg.Wait()
	if _, err := writer.WriteAt([]byte("IMAGE"), 0); err != nil { // who had it open
		t.Fatal(err)
	}
	built := func() error { t.Error("built again"); return nil }
	got, err := c.get(t.Context(), key, links(t, dir, "e"), func(w io.Writer, _ string) error { return built() })
	if err != nil {
		t.Fatal(err)
	}
	holds(t, got.Path, "image")
	holds(t, filepath.Join(dir, "a", "layers", "x"), "image")
	holds(t, held, "IMAGE")
	if n := entries(t, c.path(unverified)) + entries(t, c.path("tmp")); n != 0 {
		t.Errorf("%d files are left", n)
	}
}

// An old disk with other content is thrown away, and the disk is built, or fetched, again.
func TestOldDiskThatLies(t *testing.T) {
	dir := t.TempDir()
	c := openCache(t, dir, 1<<30)
	d := digest.FromString("image")
	old, key := left(t, c, d, "imag"), hashKey("k") // a power loss
	if err := os.Symlink("../disks/sha256-"+d.Encoded()+".erofs", c.path("chains", key)); err != nil {
		t.Fatal(err)
	}
	got, err := c.get(t.Context(), key, links(t, dir, "a"), content("image"))
	if err != nil {
		t.Fatal(err)
	}
	holds(t, got.Path, "image")
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old one: %v", err)
	}
	other := digest.FromString("other")
	left(t, c, other, "lie")
	if err := c.Link(t.Context(), other.String(), filepath.Join(dir, "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("link: %v, want fs.ErrNotExist", err)
	}
}

// Disks that no VM asks for since the upgrade are evicted like all others, and their chains with
// them. A chain whose disk was verified since stays.
func TestEvictionOfOldDisks(t *testing.T) {
	dir := t.TempDir()
	c := openCache(t, dir, 2*4096)
	for _, text := range []string{"used", "unused"} {
		d := digest.FromString(text)
		left(t, c, d, text)
		if err := os.Symlink("../disks/sha256-"+d.Encoded()+".erofs", c.path("chains", hashKey(text))); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Link(t.Context(), digest.FromString("used").String(), filepath.Join(dir, "x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.get(t.Context(), hashKey("new"), links(t, dir, "a"), content("new")); err != nil {
		t.Fatal(err)
	}
	if n, chains := entries(t, c.path(unverified)), entries(t, c.path("chains")); n != 0 || chains != 2 {
		t.Errorf("%d old disks and %d chains, want 0 and 2", n, chains)
	}
}
