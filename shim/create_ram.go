package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/filelock"
	"godwit.dev/godwit/shim/rampool"
)

// reserveRAM makes the RAM file of a VM, of size bytes without content. Admission goes
// by declared sizes, under a lock that all shims of the node take: a tmpfs that runs
// full later kills VMs without a word. The file belongs to the user that the VMM is to
// be: the first one from firstUser on that no other file there belongs to, or root if
// firstUser is 0.
func reserveRAM(path string, size uint64, firstUser int) (err error) {
	dir := filepath.Dir(path)
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("reserve RAM: %w", err)
	}
	defer lock.Close()
	if err := filelock.Lock(lock, unix.LOCK_EX); err != nil {
		return fmt.Errorf("reserve RAM: lock %s: %w", dir, err)
	}
	total, used, users, err := rampool.Use(dir)
	if err != nil {
		return fmt.Errorf("reserve RAM: %w", err)
	}
	if used+size > total {
		return fmt.Errorf("reserve RAM: %s wanted, %s of %s in %s are free; ask for less (godwit.dev/memory), end a VM, "+
			"or raise ram_size: %w",
			config.Size(size), config.Size(total-min(used, total)), config.Size(total), dir, errdefs.ErrResourceExhausted)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("reserve RAM: %w", err)
	}
	user := firstUser
	for users[user] && firstUser > 0 {
		user++
	}
	err = f.Truncate(int64(size))
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%s is no multiple of the size of its pages: %w: %w", config.Size(size), errdefs.ErrInvalidArgument,
			err)
	}
	if user > 0 && os.Geteuid() == 0 {
		err = errors.Join(err, f.Chown(user, -1))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("reserve RAM: %w", err), os.Remove(path))
	}
	return nil
}

// errHuge: what brings pages into a RAM file writes to it, which a hugetlbfs does not take.
func errHuge(dir string) error {
	return fmt.Errorf("RAM in %s consists of huge pages (ram_huge_pages), on which no VM sleeps or wakes; use a tmpfs: %w",
		dir, errdefs.ErrFailedPrecondition)
}

// smallPages answers errHuge of a dir with huge pages, and Unavailable of one that cannot be
// looked at.
func smallPages(dir string) error {
	huge, err := rampool.Huge(dir)
	if huge {
		return errHuge(dir)
	}
	return err
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
