package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
)

// reserveRAM makes the RAM file of a VM, of size bytes without content. Admission goes
// by declared sizes, under a lock that all shims of the node take: a tmpfs that runs
// full later kills VMs without a word.
func reserveRAM(path string, size uint64) (err error) {
	dir := filepath.Dir(path)
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("reserve RAM: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("reserve RAM: lock %s: %w", dir, err)
	}
	total, used, err := ramUse(dir)
	if err != nil {
		return fmt.Errorf("reserve RAM: %w", err)
	}
	if used+size > total {
		return fmt.Errorf("reserve RAM: %s wanted, %s of %s in %s are free; ask for less (godwit.dev/memory), end a VM, or raise ram_size: %w",
			config.Size(size), config.Size(total-min(used, total)), config.Size(total), dir, errdefs.ErrResourceExhausted)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("reserve RAM: %w", err)
	}
	if err := errors.Join(f.Truncate(int64(size)), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("reserve RAM: %w", err), os.Remove(path))
	}
	return nil
}

// ramUse answers the size of the file system and the declared sizes of the files in dir.
func ramUse(dir string) (total, used uint64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, 0, fmt.Errorf("look at %s: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if err != nil {
			return 0, 0, err
		}
		if info.Mode().IsRegular() {
			used += uint64(info.Size())
		}
	}
	return fs.Blocks * uint64(fs.Bsize), used, nil
}

// resident answers how many bytes of the file take memory.
func resident(path string) uint64 {
	var st unix.Stat_t
	if path == "" || unix.Stat(path, &st) != nil {
		return 0
	}
	return uint64(st.Blocks) * 512
}

// removeFile succeeds if there is no such file.
func removeFile(path string) error {
	if path == "" {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
