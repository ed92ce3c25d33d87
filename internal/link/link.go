// Package link is TCP between the programs of a cluster. A connection to a host that is gone
// ends by itself. A silent connection can be told from a slow one.
package link

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Gone is the time in which a host that is gone is noticed, at both ends.
const Gone = 20 * time.Second

// dialBound of a dialer that is not told otherwise.
const dialBound = 10 * time.Second

// alive finds out about a host that owes no answer.
var alive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}

// Dialer makes connections that end within Gone where the host at the other end is gone. The
// kernel's own patience with what it has sent is a quarter of an hour.
func Dialer() *net.Dialer {
	return &net.Dialer{KeepAliveConfig: alive, Timeout: dialBound, Control: func(_, _ string, c syscall.RawConn) error {
		return impatient(c)
	}}
}

// Watch makes an accepted connection what Dialer's are. One that is not TCP stays as it is.
func Watch(conn net.Conn) error {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err = errors.Join(err, tcp.SetKeepAliveConfig(alive)); err != nil {
		return err
	}
	return impatient(raw)
}

// Conn is a connection that knows when it was last heard of.
type Conn struct {
	net.Conn
	made  time.Time
	heard atomic.Int64 // after made
}

// Listen is conn as a Conn.
func Listen(conn net.Conn) *Conn { return &Conn{Conn: conn, made: time.Now()} }

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard.Store(int64(time.Since(c.made)))
	}
	return n, err
}

// Mute reports whether nothing was heard since then.
func (c *Conn) Mute(since time.Time) bool {
	return c.made.Add(time.Duration(c.heard.Load())).Before(since)
}

// TimedOut reports whether ctx ran out of time, and was not called off.
func TimedOut(ctx context.Context) bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }
