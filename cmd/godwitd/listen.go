package main

import (
	"errors"
	"fmt"
	"net"
	"os"

	"godwit.dev/godwit/internal/link"
	"godwit.dev/godwit/migrate/connlimit"
)

// listen on a unix socket that only this user may connect to.
func listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return link.Refusing(l, turnAway), nil
}

// listenTCP on an address of the configuration, which bounds what strangers hold of it.
func (d *daemon) listenTCP(port, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", port, err)
	}
	return connlimit.Listen(link.Refusing(l, func(c net.Conn) { _ = c.Close() }), port, d.clients), nil
}
