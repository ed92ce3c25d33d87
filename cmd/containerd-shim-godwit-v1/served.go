package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// servedBound is how long a shim that lives may take to be reached: the kernel does it for it.
const servedBound = 2 * time.Second

// served reports whether a process listens at a shim's address, unix://PATH. Only the kernel's
// word on the socket shows that none does. A caller that cannot ask, for want of a descriptor
// say, does not know it.
func served(address string) (bool, error) {
	conn, err := net.DialTimeout("unix", strings.TrimPrefix(address, "unix://"), servedBound)
	switch {
	case err == nil:
		return true, conn.Close()
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return false, nil
	case errors.Is(err, unix.EAGAIN): // so many wait there already
		return true, nil
	}
	return false, fmt.Errorf("look whether a shim serves on %s, which stays: %w: %w", address, err, errdefs.ErrUnavailable)
}
