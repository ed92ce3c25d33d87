package inroot

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotRegular says that a path is that of a directory, device, fifo, socket or link.
var ErrNotRegular = errors.New("it is no regular file")

// OpenRegular opens a regular file. To open anything else could wait for ever, or have effects on a device: it is not
// opened at all.
func (r *Root) OpenRegular(path string, flags int) (*os.File, error) {
	found, err := r.OpenFile(path, unix.O_PATH|flags&unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	return Regular(found, flags)
}

// Regular opens what was opened with O_PATH if that is a regular file.
func Regular(found *os.File, flags int) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(found.Fd()), &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: found.Name(), Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &os.PathError{Op: "open", Path: found.Name(), Err: ErrNotRegular}
	}
	fd, err := patient(func() (int, error) {
		return unix.Open(Path(found), flags&^unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: found.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), found.Name()), nil
}

// maxLinks is what the kernel follows in a path.
const maxLinks = 40

// Create makes a file where links of the path lead to, if their directory is there, and opens it for writing. It opens
// nothing that is there.
func (r *Root) Create(path string, mode uint32) (*os.File, error) {
	path = clean(path)
	for range maxLinks {
		at := strings.LastIndexByte(path, '/')
		dir, name := path[:at+1], path[at+1:] // not cleaned: a directory may be a link
		if name == "" || name == "." || name == ".." {
			return nil, &os.PathError{Op: "create", Path: path, Err: os.ErrExist}
		}
		f, target, err := r.createAt(dir, name, mode)
		if err != nil || f != nil {
			return f, err
		}
		if !strings.HasPrefix(target, "/") {
			target = dir + target
		}
		path = target
	}
	return nil, &os.PathError{Op: "create", Path: path, Err: unix.ELOOP}
}

// createAt makes the file, or answers where the link of that name leads to.
func (r *Root) createAt(dir, name string, mode uint32) (f *os.File, target string, err error) {
	parent, err := r.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, "", err
	}
	defer parent.Close()
	fd, err := unix.Openat(int(parent.Fd()), name,
		unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err == nil {
		return os.NewFile(uintptr(fd), dir+name), "", nil
	}
	link := make([]byte, unix.PathMax)
	n, no := unix.Readlinkat(int(parent.Fd()), name, link)
	if err == unix.EEXIST && no == nil && n > 0 && n < len(link) {
		return nil, string(link[:n]), nil
	}
	return nil, "", &os.PathError{Op: "create", Path: dir + name, Err: err}
}

// What is tried again, for a moment: a rename elsewhere may have raced with the walk of a path, or the holder of a
// lease is told. Both may go on for as long as a container likes.
const (
	triesMax  = 100
	triesWait = time.Millisecond
)

// patient repeats a call that was interrupted, or that may succeed in a moment.
func patient(open func() (int, error)) (fd int, err error) {
	for tries := 0; ; {
		fd, err = open()
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN && tries < triesMax:
			tries++
			time.Sleep(triesWait)
		case err == unix.EAGAIN:
			return -1, fmt.Errorf("it is kept from being opened: %w", err)
		default:
			return fd, err
		}
	}
}
