// Package socket is godwitd's own unix socket, with answers for the times in which the daemon cannot
// serve: while the store of the records is out of reach, and while it has no free file descriptors.
package socket

import (
	"errors"
	"fmt"
	"net"
	"os"

	"godwit.dev/godwit/internal/link"
)

// Listen on a unix socket that only this user may connect to.
func Listen(path string) (net.Listener, error) {
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
