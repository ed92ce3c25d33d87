package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Writers counts the open files by which a process may write to f, for NoteFile. One that goes past the kernel's cache
// is an error. Several descriptors of a process may be of one open file.
func Writers(pid int, f *os.File) (int, error) {
	var file unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &file); err != nil {
		return 0, err
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	list, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return 0, fmt.Errorf("look for writers: %w", err)
	}
	var open []int
	for _, entry := range list {
		var st unix.Stat_t
		// One that was closed meanwhile is missing from the count, which is too low then.
		if unix.Stat(filepath.Join(dir, "fd", entry.Name()), &st) != nil || st.Dev != file.Dev || st.Ino != file.Ino {
			continue
		}
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			return 0, fmt.Errorf("look for writers: %w", err)
		}
		may, err := mayWrite(filepath.Join(dir, "fdinfo", entry.Name()))
		if err != nil {
			return 0, fmt.Errorf("look for writers: %w", err)
		}
		if !may {
			continue
		}
		known, err := isOneOf(pid, fd, open)
		if err != nil {
			return 0, fmt.Errorf("look for writers: %w", err)
		}
		if !known {
			open = append(open, fd)
		}
	}
	return len(open), nil
}

var errDirect = errors.New("a process writes past the kernel's cache")

// mayWrite reads a file of fdinfo.
func mayWrite(path string) (bool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	var at int64
	var flags int
	if _, err := fmt.Sscanf(string(data), "pos:\t%d\nflags:\t%o", &at, &flags); err != nil {
		return false, err
	}
	if flags&unix.O_ACCMODE == unix.O_RDONLY {
		return false, nil
	}
	if flags&unix.O_DIRECT != 0 {
		return false, errDirect
	}
	return true, nil
}

// isOneOf reports whether a descriptor is of the same open file as another one of its process.
func isOneOf(pid, fd int, open []int) (bool, error) {
	for _, other := range open {
		order, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(pid), 0, uintptr(fd), uintptr(other), 0)
		if e != 0 {
			return false, e
		}
		if order == 0 {
			return true, nil
		}
	}
	return false, nil
}
