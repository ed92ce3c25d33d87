package controller

import (
	"context"
	"io"
	"net"
)

// boundConn is a connection that ends with the server, and its calls with it. So a server that is
// stopped answers nothing: who has asked finds that nobody is there, and asks the next one, and
// never hears that its call was called off.
type boundConn struct {
	net.Conn
	released func() bool
}

func closeWith(ctx context.Context, c net.Conn) net.Conn {
	return &boundConn{c, context.AfterFunc(ctx, func() { _ = c.Close() })}
}

// Read implements net.Conn. Behind any other error than an end ttrpc would let the calls go on,
// whose answers reach nobody, and which may have no bound of their own.
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
