package connlimit

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
)

// conn is a client's; its descriptor may be passed on, as that of the connection itself.
type conn struct {
	net.Conn
	limit *listener
	from  netip.Prefix
	once  sync.Once
}

// leave ends a stranger: it is known, or gone.
func (c *conn) leave(known bool) { c.once.Do(func() { c.limit.leave(c.from, known) }) }

// Close implements net.Conn.
func (c *conn) Close() error {
	c.leave(false)
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("connection %T has no descriptor: %w", c.Conn, errdefs.ErrInvalidArgument)
	}
	return sc.SyscallConn()
}
