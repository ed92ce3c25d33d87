package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
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
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("reserve RAM: lock %s: %w", dir, err)
	}
	total, used, users, err := ramUse(dir)
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
	user := firstUser
	for users[user] && firstUser > 0 {
		user++
	}
	err = f.Truncate(int64(size))
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%s is no multiple of the size of its pages: %w: %w", config.Size(size), errdefs.ErrInvalidArgument, err)
	}
	if user > 0 && os.Geteuid() == 0 {
		err = errors.Join(err, f.Chown(user, -1))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("reserve RAM: %w", err), os.Remove(path))
	}
	return nil
}

// ramUse answers the size of the file system, the declared sizes of the files in dir, and
// whose they are.
func ramUse(dir string) (total, used uint64, users map[int]bool, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, 0, nil, fmt.Errorf("look at %s: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0, nil, err
	}
	users = map[int]bool{}
	var promised uint64 // to VMs that have not touched it yet
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if err != nil {
			return 0, 0, nil, err
		}
		if info.Mode().IsRegular() {
			used += uint64(info.Size())
			promised += uint64(info.Size()) - min(uint64(info.Size()), resident(filepath.Join(dir, e.Name())))
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			users[int(st.Uid)] = true
		}
	}
	if fs.Type == unix.HUGETLBFS_MAGIC {
		free, err := freeHuge(uint64(fs.Bsize), promised)
		return used + free, used, users, err
	}
	return fs.Blocks * uint64(fs.Bsize), used, users, nil
}

// freeHuge is what is left of the host's huge pages of that size: those that are free,
// less those that somebody has been promised.
func freeHuge(page, promised uint64) (uint64, error) {
	count := func(name string) (n uint64, err error) {
		data, err := os.ReadFile(fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/%s", page>>10, name))
		if err == nil {
			n, err = strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
		}
		return n, err
	}
	free, err := count("free_hugepages")
	if err != nil {
		return 0, err
	}
	reserved, err := count("resv_hugepages")
	if err != nil {
		return 0, err
	}
	taken := max(reserved*page, promised)
	return free*page - min(free*page, taken), nil
}

// hugeRAM tells whether RAM files in dir consist of huge pages.
func hugeRAM(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Type == unix.HUGETLBFS_MAGIC
}

// errHuge: what brings pages into a RAM file writes to it, which a hugetlbfs does not take.
func errHuge(dir string) error {
	return fmt.Errorf("RAM in %s consists of huge pages (ram_huge_pages), on which no VM sleeps or wakes; use a tmpfs: %w", dir, errdefs.ErrFailedPrecondition)
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
