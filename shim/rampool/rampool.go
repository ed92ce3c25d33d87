// Package rampool mounts the tmpfs, or hugetlbfs, that the RAM files of a node's VMs lie in. It is
// godwit's own, so that its size is a bound that admission can count against.
package rampool

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/filelock"
)

// Mount makes dir a mounted tmpfs of size bytes, 0 for half of the host's memory, unless
// one or a hugetlbfs is mounted there. With a page size it is a hugetlbfs, of which 0 is
// as large as the host has pages. godwitd calls it at start, and a shim on a node without
// one.
// A tmpfs is never swapped out, where the kernel has that (Linux 6.4): RAM would lie on a disk.
// Like: mount -t tmpfs -o size=$size,mode=0700,nosuid,nodev,noexec,noswap godwit-ram $dir
func Mount(dir string, size, page uint64) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("ram_dir: %w", err)
	}
	lock, err := os.OpenFile(filepath.Clean(dir)+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("ram_dir: %w", err)
	}
	defer lock.Close()
	if err := filelock.Lock(lock, unix.LOCK_EX); err != nil {
		return fmt.Errorf("ram_dir: lock %s: %w", lock.Name(), err)
	}
	if mounted, err := pool(dir, page); mounted || err != nil {
		return err
	}
	kind := "tmpfs"
	options := "mode=0700"
	if size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	if page > 0 {
		kind, options = "hugetlbfs", options+fmt.Sprintf(",pagesize=%d", page)
	}
	if page == 0 && CanForbidSwap() {
		options += ",noswap"
	}
	if err := unix.Mount("godwit-ram", dir, kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return fmt.Errorf("mount a %s on %s (ram_dir): %w", kind, dir, err)
	}
	return nil
}

// Suits reports whether a file system keeps its files in memory, and whether its pages are
// those that are configured: huge ones of page bytes, or, for 0, any.
func Suits(fs *unix.Statfs_t, page uint64) (ram, sized bool) {
	huge := fs.Type == unix.HUGETLBFS_MAGIC
	return huge || fs.Type == unix.TMPFS_MAGIC, page == 0 || huge && uint64(fs.Bsize) == page
}

// pool reports whether a file system for RAM is mounted on dir itself. Another file
// system on it is refused: RAM would go to a disk.
func pool(dir string, page uint64) (bool, error) {
	var own, parent unix.Stat_t
	if err := unix.Stat(dir, &own); err != nil {
		return false, fmt.Errorf("ram_dir %s: %w", dir, err)
	}
	if err := unix.Stat(filepath.Dir(filepath.Clean(dir)), &parent); err != nil {
		return false, fmt.Errorf("ram_dir %s: %w", dir, err)
	}
	if own.Dev == parent.Dev {
		return false, nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return false, fmt.Errorf("ram_dir %s: %w", dir, err)
	}
	ram, sized := Suits(&fs, page)
	if !ram {
		return false, fmt.Errorf("ram_dir %s: a file system of type %#x is mounted there; unmount it, or name another "+
			"directory: %w", dir, fs.Type, errdefs.ErrFailedPrecondition)
	}
	if !sized {
		return false, fmt.Errorf("ram_dir %s: what is mounted there has no pages of %d bytes; end its VMs and unmount it: %w",
			dir, page, errdefs.ErrFailedPrecondition)
	}
	return true, nil
}
