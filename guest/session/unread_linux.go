package session

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// unread reports whether what was written last still waits in the channel's socket: the
// VMM takes nothing before the guest has opened its end. What is not known counts as
// read.
func (l *link) unread() bool {
	c, ok := l.ch.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	waiting := 0
	if err := raw.Control(func(fd uintptr) { waiting, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
		return false
	}
	return waiting > 0
}
