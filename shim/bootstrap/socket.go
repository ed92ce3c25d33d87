package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/errdefs"
	"godwit.dev/godwit/shim"
	"golang.org/x/sys/unix"
)

type socket struct {
	address  string
	listener *net.UnixListener
	file     *os.File
}

// close lets go of the socket; the serving process has it by then, unless *failed.
func (s *socket) close(failed *error) {
	s.listener.SetUnlinkOnClose(*failed != nil)
	s.file.Close()
	s.listener.Close()
}

var errServed = errors.New("socket is served already")

func listen(ctx context.Context, b *params, debug bool) (*socket, error) {
	address, err := containerd.CreateSocketAddress(ctx, b.socketDir, b.address, b.id, debug)
	if err != nil {
		return nil, err
	}
	l, err := containerd.NewSocket(address)
	if containerd.SocketEaddrinuse(err) {
		is, unknown := served(address)
		if unknown != nil {
			return nil, unknown
		}
		if is {
			return &socket{address: address}, errServed
		}
		if err := containerd.RemoveSocket(address); err != nil {
			return nil, fmt.Errorf("remove stale socket: %w", err)
		}
		l, err = containerd.NewSocket(address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	f, err := l.File()
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return &socket{address: address, listener: l, file: f}, nil
}

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

// dyingBound is how long a killed process may take to let go of its socket: containerd
// hears of its end before it is over.
const dyingBound = time.Second

// servedInterval is how often it is looked whether somebody still serves on a socket.
const servedInterval = 10 * time.Millisecond

// removeSocket removes the socket that a dead shim has left. One that is served on is
// another shim's by now, or of one that could not be killed.
func removeSocket(ctx context.Context, bundle string) error {
	address, err := shim.ServedAt(bundle)
	if err != nil || address == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dyingBound)
	defer cancel()
	for {
		is, err := served(address)
		if err != nil {
			return err
		}
		if !is {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(servedInterval):
		}
	}
	if err := containerd.RemoveSocket(address); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove socket of dead shim: %w", err)
	}
	return nil
}
