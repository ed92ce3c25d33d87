package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// onDisk answers a directory on a file system of that size.
func onDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// cachedAt keeps a disk that no VM holds, used then.
func cachedAt(t *testing.T, c *Cache, dir, text string, used time.Time) {
	t.Helper()
	path := filepath.Join(links(t, dir, "vm"), "x")
	d := digest.FromString(text)
	if err := c.Keep(t.Context(), d.String(), strings.NewReader(text), path); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path), os.Chtimes(c.path(verified, "sha256-"+d.Encoded()+".erofs"), used,
		used)); err != nil {
		t.Fatal(err)
	}
}

// A disk that comes, or that an earlier build left and is copied, takes the place of unused ones
// where the disk is full. The oldest go first, and no more of them than it needs.
func TestRoomIsMade(t *testing.T) {
	for _, how := range []string{"comes", "is copied"} {
		t.Run(how, func(t *testing.T) {
			dir := onDisk(t, "8m")
			c, path := openCache(t, dir, 1<<30), filepath.Join(links(t, dir, "new"), "x")
			oldest, older, text := strings.Repeat("a", 2*mib), strings.Repeat("b", 2*mib), strings.Repeat("c", 5*mib/2)
			cachedAt(t, c, dir, oldest, time.Unix(1, 0))
			cachedAt(t, c, dir, older, time.Unix(2, 0))
			d := digest.FromString(text)
			var err error
			if how == "comes" {
				if err := os.WriteFile(filepath.Join(dir, "other"), make([]byte, 3*mib), 0o600); err != nil {
					t.Fatal(err)
				}
				err = c.Keep(t.Context(), d.String(), strings.NewReader(text), path)
			} else {
				left(t, c, d, text)
				err = c.Link(t.Context(), d.String(), path)
			}
			if err != nil {
				t.Fatal(err)
			}
			holds(t, path, text)
			if err := c.Link(t.Context(), digest.FromString(oldest).String(), path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the oldest: %v, want not there", err)
			}
			if err := c.Link(t.Context(), digest.FromString(older).String(), path); err != nil {
				t.Errorf("the other: %v", err)
			}
		})
	}
}

// An old disk for whose copy no room can be made is given up where no VM holds it. It can then
// be fetched again. It stays where a VM holds it.
func TestNoRoomForACopy(t *testing.T) {
	dir := onDisk(t, "4m")
	c, path := openCache(t, dir, 1<<30), filepath.Join(links(t, dir, "new"), "x")
	text := strings.Repeat("c", 5*mib/2)
	d := digest.FromString(text)
	old, held := left(t, c, d, text), filepath.Join(links(t, dir, "vm"), "held")
	if err := os.Link(old, held); err != nil {
		t.Fatal(err)
	}
	if err := c.Link(t.Context(), d.String(), path); !errdefs.IsResourceExhausted(err) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a VM's: %v, want ResourceExhausted", err)
	}
	holds(t, old, text)
	if err := os.Remove(held); err != nil {
		t.Fatal(err)
	}
	if err := c.Link(t.Context(), d.String(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nobody's: %v, want not there", err)
	}
	if err := c.Keep(t.Context(), d.String(), strings.NewReader(text), path); err != nil {
		t.Errorf("fetched again: %v", err)
	}
	holds(t, path, text)
}
