package main

import (
	"fmt"
	"net"

	"godwit.dev/godwit/internal/link"
	"godwit.dev/godwit/migrate/connlimit"
)

// listenTCP on an address of the configuration, which bounds what strangers hold of it.
func (d *daemon) listenTCP(port, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", port, err)
	}
	return connlimit.Listen(link.Refusing(l, func(c net.Conn) { _ = c.Close() }), port, d.clients), nil
}
