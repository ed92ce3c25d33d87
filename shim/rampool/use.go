package rampool

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
)

// Use answers the size of the file system, the declared sizes of the files in dir, and
// whose they are.
func Use(dir string) (total, used uint64, users map[int]bool, err error) {
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
			promised += uint64(info.Size()) - min(uint64(info.Size()), Resident(filepath.Join(dir, e.Name())))
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

// Huge tells whether RAM files in dir consist of huge pages. Unavailable says that dir cannot be
// looked at.
func Huge(dir string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return false, fmt.Errorf("look whether %s (ram_dir) has huge pages: %w: %w", dir, errdefs.ErrUnavailable, err)
	}
	return fs.Type == unix.HUGETLBFS_MAGIC, nil
}

// Resident answers how many bytes of the file take memory.
func Resident(path string) uint64 {
	var st unix.Stat_t
	if path == "" || unix.Stat(path, &st) != nil {
		return 0
	}
	return uint64(st.Blocks) * 512
}
