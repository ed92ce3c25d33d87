//go:build integration

package rampool

import (
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Many shims that start at once mount one tmpfs.
func TestMountOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ram")
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := Mount(dir, 64<<20, 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if got := fs.Blocks * uint64(fs.Bsize); got != 64<<20 {
		t.Errorf("size of the pool = %d, want %d", got, 64<<20)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	if mounted, err := pool(dir, 0); mounted || err != nil {
		t.Errorf("after one unmount pool = %v, %v; a second tmpfs was stacked", mounted, err)
	}
}

func TestRefusesAnotherFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("proc", dir, "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	if err := Mount(dir, 0, 0); err == nil {
		t.Error("Mount over a foreign file system succeeded")
	}
}
