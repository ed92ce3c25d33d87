package vmmtest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	hugePage  = 2 << 20
	hugeCount = "/proc/sys/vm/nr_hugepages"
)

// MountHuge reserves huge pages for that many bytes and mounts a hugetlbfs on dir. undo gives
// all back. The host has one count of them, so a test of another process waits until undo. A
// second call before it in one test waits for ever.
func MountHuge(dir string, size uint64) (undo func() error, err error) {
	lock, err := os.Open(hugeCount)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	unmount, err := mountHuge(dir, size)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return func() error { return errors.Join(unmount(), lock.Close()) }, nil
}

func mountHuge(dir string, size uint64) (unmount func() error, err error) {
	before, err := hugePages()
	if err != nil {
		return nil, err
	}
	want := before + int(size/hugePage)
	back := func() error { return os.WriteFile(hugeCount, []byte(strconv.Itoa(before)), 0o644) }
	if err := os.WriteFile(hugeCount, []byte(strconv.Itoa(want)), 0o644); err != nil {
		return nil, err
	}
	got, err := hugePages()
	if err == nil && got < want {
		err = fmt.Errorf("the host has memory for %d of %d huge pages", got-before, want-before)
	}
	if err == nil {
		err = unix.Mount("godwit-huge", dir, "hugetlbfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700,pagesize=2M")
	}
	if err != nil {
		if backErr := back(); backErr != nil {
			return nil, fmt.Errorf("%w; %w", err, backErr)
		}
		return nil, err
	}
	return func() error {
		if err := unix.Unmount(dir, 0); err != nil {
			return err
		}
		return back()
	}, nil
}

func hugePages() (int, error) {
	data, err := os.ReadFile(hugeCount)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// huge tells whether the file consists of huge pages, which cannot be written to.
func huge(f *os.File) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &fs) == nil && fs.Type == unix.HUGETLBFS_MAGIC
}

// store copies through memory.
func store(to, from *os.File, off, length int64) error {
	for end := off + length; off < end; off += hugePage {
		page, err := unix.Mmap(int(to.Fd()), off, hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		_, err = from.ReadAt(page, off)
		if unmapErr := unix.Munmap(page); err == nil {
			err = unmapErr
		}
		if err != nil {
			return err
		}
	}
	return nil
}
