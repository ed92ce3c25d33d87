package link

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// impatient bounds how long what was sent may stay unacknowledged.
func impatient(c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(Gone.Milliseconds()))
	})
	return errors.Join(err, set)
}
