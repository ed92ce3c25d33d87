package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/bpf"
)

// localhost is a listener for all ports. The kernel gives it connections as long as link is open.
type localhost struct {
	*net.TCPListener
	link *os.File
}

// ListenLocalhost answers listeners that get every TCP connection to 127.0.0.1, and to ::1, in the namespace at path,
// whatever its port. The port is that of the connection's LocalAddr. A socket of the namespace that listens there gets
// none until the listener is closed. A namespace without ::1 has one listener.
func ListenLocalhost(path string) ([]net.Listener, error) {
	ns, err := openNamespace(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	four, err := listenLocalhost(ns, "tcp4", "127.0.0.1:0", unix.AF_INET)
	if err != nil {
		return nil, fmt.Errorf("listen on localhost of %s: %w", path, err)
	}
	six, err := listenLocalhost(ns, "tcp6", "[::1]:0", unix.AF_INET6)
	switch {
	case errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT):
		return []net.Listener{four}, nil
	case err != nil:
		return nil, errors.Join(fmt.Errorf("listen on localhost of %s: %w", path, err), four.Close())
	}
	return []net.Listener{four, six}, nil
}

func listenLocalhost(ns *os.File, network, address string, family int) (*localhost, error) {
	var l *net.TCPListener
	err := within(ns, func() error {
		var c net.ListenConfig
		c.SetMultipathTCP(false) // the kernel's map takes plain TCP only
		made, err := c.Listen(context.Background(), network, address)
		if err == nil {
			l = made.(*net.TCPListener)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	link, err := takeLoopback(ns, l, family)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &localhost{l, link}, nil
}

func takeLoopback(ns *os.File, l *net.TCPListener, family int) (link *os.File, err error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) { link, err = bpf.TakeLoopback(ns, int(fd), family) })
	return link, errors.Join(failed, err)
}

// Close implements net.Listener.
func (l *localhost) Close() error { return errors.Join(l.link.Close(), l.TCPListener.Close()) }
