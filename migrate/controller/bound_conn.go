package controller

import (
	"context"
	"io"
	"net"
)

// boundConn is a connection that ends with the server, and its calls with it. So a server that is stopped answers
// nothing: the caller finds that no server is there, and asks the next one. It never hears that its call was called
// off.
type boundConn struct {
	net.Conn
	released func() bool
}

func closeWith(ctx context.Context, c net.Conn) net.Conn {
	return &boundConn{c, context.AfterFunc(ctx, func() { _ = c.Close() })}
}

// Read implements net.Conn. After any other error than an end ttrpc would let the calls go on. Their answers reach
// no caller, and they may have no bound of their own.
func (e *boundConn) Read(p []byte) (int, error) {
	n, err := e.Conn.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

// Close implements net.Conn.
func (e *boundConn) Close() error {
	e.released()
	return e.Conn.Close()
}
