package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"godwit.dev/godwit/internal/bpf"
)

// localhost is a listener for all ports. The kernel gives it connections as long as link is open.
type localhost struct {
	*net.TCPListener
	link *os.File
}

// ListenLocalhost answers a listener that gets every TCP connection to 127.0.0.1 in the namespace at path, whatever
// its port. The port is that of the connection's LocalAddr. A socket of the namespace that listens there gets none
// until the listener is closed.
func ListenLocalhost(path string) (net.Listener, error) {
	ns, err := openNamespace(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	var l *net.TCPListener
	err = within(ns, func() (err error) {
		var c net.ListenConfig
		c.SetMultipathTCP(false) // the kernel's map takes plain TCP only
		any, err := c.Listen(context.Background(), "tcp4", "127.0.0.1:0")
		if err == nil {
			l = any.(*net.TCPListener)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on localhost of %s: %w", path, err)
	}
	link, err := takeLoopback(ns, l)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on localhost of %s: %w", path, err), l.Close())
	}
	return &localhost{l, link}, nil
}

func takeLoopback(ns *os.File, l *net.TCPListener) (link *os.File, err error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) { link, err = bpf.TakeLoopback(ns, int(fd)) })
	return link, errors.Join(failed, err)
}

// Close implements net.Listener.
func (l *localhost) Close() error { return errors.Join(l.link.Close(), l.TCPListener.Close()) }
