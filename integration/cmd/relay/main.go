// Command relay copies its stdin, a pipe, to a file: with the largest pipe and the largest
// reads there are, and nothing between them. No agent can bring a process's output to a
// port with less, so this is what the tests compare output with.
package main

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

const size = 1 << 20

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: relay FILE")
		os.Exit(2)
	}
	if err := relay(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func relay(path string) error {
	runtime.LockOSThread()
	to, err := unix.Open(path, unix.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(to)
	if _, err := unix.FcntlInt(0, unix.F_SETPIPE_SZ, size); err != nil {
		return fmt.Errorf("enlarge pipe: %w", err)
	}
	buf := make([]byte, size)
	for {
		n, err := call(unix.SYS_READ, 0, buf)
		if n == 0 || err != nil {
			return err
		}
		for rest := buf[:n]; len(rest) > 0; {
			n, err := call(unix.SYS_WRITE, to, rest)
			if err != nil {
				return err
			}
			rest = rest[n:]
		}
	}
}

// call is a read or write that Go's scheduler does not hear of.
func call(number uintptr, fd int, b []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(number, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, fmt.Errorf("relay: %w", errno)
		}
		return int(n), nil
	}
}
