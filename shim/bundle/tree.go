package bundle

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// entry is a file, directory or symbolic link below the source of a copy. It is held by a
// descriptor that can only say what it is. The owner of the directory may put something else in
// its place meanwhile, which is then not looked at.
type entry struct {
	name string // relative to the source; "." is the source
	st   unix.Stat_t
	at   *os.File // opened with O_PATH
}

// openEntry opens what lies under one name of a directory. No symbolic link is followed, no pipe
// is waited for, no device is opened.
func openEntry(dir int, name, rel string) (*entry, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: rel, Err: err}
	}
	e := &entry{name: rel, at: os.NewFile(uintptr(fd), rel)}
	if err := unix.Fstat(fd, &e.st); err != nil {
		e.at.Close()
		return nil, &fs.PathError{Op: "stat", Path: rel, Err: err}
	}
	return e, nil
}

func (e *entry) kind() uint32 { return e.st.Mode & unix.S_IFMT }

// open reads the file or directory that is held, and no other.
func (e *entry) open() (*os.File, error) {
	flags := unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY
	if e.kind() == unix.S_IFDIR {
		flags |= unix.O_DIRECTORY
	}
	// The link of /proc leads to the file itself, whatever its name is by now.
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", e.at.Fd()), flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: e.name, Err: err}
	}
	return f, nil
}

// link is the target of a symbolic link.
func (e *entry) link() (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(e.at.Fd()), "", buf)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: e.name, Err: err}
	}
	return string(buf[:n]), nil
}

// holdPath opens a path in which nothing is a symbolic link.
func holdPath(name string) (*entry, error) {
	e, err := openEntry(unix.AT_FDCWD, "/", ".")
	for part := range strings.SplitSeq(path.Clean(name), "/") {
		if err != nil || part == "" {
			continue
		}
		above := e
		e, err = openEntry(int(above.at.Fd()), part, ".")
		above.at.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return e, nil
}

// each calls fn for e and what is below, parents first, in the order of names.
func (e *entry) each(fn func(*entry) error) error {
	if err := fn(e); err != nil || e.kind() != unix.S_IFDIR {
		return err
	}
	dir, err := e.open()
	if err != nil {
		return err
	}
	defer dir.Close()
	e.at.Close() // a deep tree takes one descriptor a level
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		below, err := openEntry(int(dir.Fd()), name, path.Join(e.name, name))
		if err != nil {
			return err
		}
		err = below.each(fn)
		if below.at.Close(); err != nil {
			return err
		}
	}
	return nil
}
