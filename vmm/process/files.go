package process

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// FirstFD is the number that the first passed file has in the process.
const FirstFD = 3

// Files are the descriptors that a process gets. Everything else of ours is
// close-on-exec.
type Files struct {
	passed []int // duplicates, ours to close
}

// FDs are for Launch.FDs.
func (f *Files) FDs() []int { return f.passed }

// Close closes what is ours, in any state; the sockets' files stay.
func (f *Files) Close() error {
	var errs []error
	for _, fd := range f.passed {
		errs = append(errs, unix.Close(fd))
	}
	f.passed = nil
	return errors.Join(errs...)
}

// Pass takes a duplicate of file and returns its number in the process.
func (f *Files) Pass(file *os.File) (string, error) {
	fd, err := Control(file, func(fd int) (int, error) {
		return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	})
	if err != nil {
		return "", fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
	}
	f.passed = append(f.passed, fd)
	return strconv.Itoa(FirstFD + len(f.passed) - 1), nil
}

// Listen makes the socket here and not in the process, so that no client waits for it to appear.
func (f *Files) Listen(path string) (string, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return "", fmt.Errorf("listen on %s: %w: %w", path, errdefs.ErrFailedPrecondition, err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	file, err := l.File()
	if err != nil {
		return "", errors.Join(fmt.Errorf("listen on %s: %w", path, err), RemoveSockets(path))
	}
	defer file.Close()
	fd, err := f.Pass(file)
	if err != nil {
		return "", errors.Join(err, RemoveSockets(path))
	}
	return fd, nil
}

// RemoveSockets removes the files that are there.
func RemoveSockets(paths ...string) error {
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Dup is another descriptor of file, which the caller closes.
func Dup(file *os.File) (*os.File, error) {
	return Control(file, func(fd int) (*os.File, error) {
		fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return os.NewFile(uintptr(fd), file.Name()), err
	})
}

// Control calls do with the descriptor, which stays as it is: Fd would make it blocking.
// Of a file that is closed it is os.ErrClosed.
func Control[T any](file *os.File, do func(fd int) (T, error)) (value T, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return value, err
	}
	if ctlErr := raw.Control(func(fd uintptr) { value, err = do(int(fd)) }); ctlErr != nil {
		// The runtime's own error of a closed file is none that errors.Is knows.
		return value, fmt.Errorf("%w: %w", os.ErrClosed, ctlErr)
	}
	return value, err
}
