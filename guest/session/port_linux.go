package session

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// port is a virtio-serial port. While no host is connected, poll(2) says POLLHUP for ever,
// read(2) end of file and write(2) EAGAIN. The edge-triggered poller of the Go runtime sleeps
// until that changes.
type port struct {
	file *os.File
	raw  syscall.RawConn
}

// OpenPort opens a virtio-serial port of the guest.
func OpenPort(path string) (io.ReadWriteCloser, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open port %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open port %s: %w", path, err), f.Close())
	}
	return &port{file: f, raw: raw}, nil
}

// Read waits for bytes; the absence of a host is waited out.
func (p *port) Read(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	waitErr := p.raw.Read(func(fd uintptr) bool {
		n, err = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), b) })
		return n > 0 || err != nil && err != unix.EAGAIN
	})
	return max(n, 0), errors.Join(err, waitErr)
}

// Write writes all of b. What is written while the host goes away is lost.
func (p *port) Write(b []byte) (done int, err error) {
	waitErr := p.raw.Write(func(fd uintptr) bool {
		for done < len(b) {
			var n int
			n, err = ignoringEINTR(func() (int, error) { return writeNow(fd, b[done:]) })
			done += max(n, 0)
			if err == unix.EAGAIN {
				err = nil
				return false
			}
			if err != nil {
				return true
			}
		}
		return true
	})
	return done, errors.Join(err, waitErr)
}

// Close implements io.Closer. It wakes a blocked Read or Write.
func (p *port) Close() error { return p.file.Close() }

// writeNow writes to a non-blocking descriptor without a word to the Go scheduler. For a call
// that it knows of, the scheduler looks for other work and wakes threads. To change places with
// them costs more than the write where there is no KVM.
func writeNow(fd uintptr, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}
