package shim

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// fakePorts is the localhost of the fake guest: programs listen at these addresses of the host.
type fakePorts struct {
	mu       sync.Mutex
	programs map[uint32]string
	conns    map[string]*fakeConn
	most     int // connections at a time
	// What gives the shim connections to localhost; nil: nothing does.
	localhost func(netns string) ([]net.Listener, error)
}

// listen is what a host has for its shim.
func (p *fakePorts) listen(netns string) ([]net.Listener, error) {
	if p.localhost == nil {
		return nil, nil
	}
	return p.localhost(netns)
}

// fakeConn is one connection in the guest.
type fakeConn struct {
	*net.TCPConn
	mu             sync.Mutex
	accepted, sent uint64
}

// program has a program of the guest serve a port.
func (w *world) program(port uint32, serve func(*net.TCPConn)) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.must("listen", err)
	w.t.Cleanup(func() { _ = l.Close() })
	go func() {
		var kept []net.Conn // a connection that nothing refers to is closed by a garbage collection
		defer func() {
			for _, c := range kept {
				_ = c.Close()
			}
		}()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			kept = append(kept, c)
			go serve(c.(*net.TCPConn))
		}
	}()
	p := &w.agent.ports
	p.mu.Lock()
	defer p.mu.Unlock()
	p.programs[port] = l.Addr().String()
}

// left are the connections that the guest has, and the most that it had.
func (p *fakePorts) left() (now, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns), p.most
}

func (p *fakePorts) conn(id string) *fakeConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[id]
}

func (a *fakeAgent) Connect(_ context.Context, r *agentv1.ConnectRequest) (*agentv1.ConnectResponse, error) {
	if err := a.aside("connect"); err != nil {
		return nil, err
	}
	p := &a.ports
	p.mu.Lock()
	defer p.mu.Unlock()
	to, listens := p.programs[r.GetPort()]
	if !listens {
		return nil, fmt.Errorf("port %d: %w", r.GetPort(), errdefs.ErrNotFound)
	}
	if p.conns[r.GetId()] != nil {
		return nil, fmt.Errorf("connection %q: %w", r.GetId(), errdefs.ErrAlreadyExists)
	}
	c, err := net.Dial("tcp", to)
	if err != nil {
		return nil, err
	}
	p.conns[r.GetId()] = &fakeConn{TCPConn: c.(*net.TCPConn)}
	p.most = max(p.most, len(p.conns))
	return &agentv1.ConnectResponse{}, nil
}

// drop is Remove of a connection; false: there is none.
func (p *fakePorts) drop(id string) bool {
	p.mu.Lock()
	c := p.conns[id]
	delete(p.conns, id)
	p.mu.Unlock()
	if c != nil {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	return c != nil
}

// until closes the connection's end of the host if ctx ends before the function that it answers is called.
func (c *fakeConn) until(ctx context.Context) func() bool {
	return context.AfterFunc(ctx, func() { _ = c.Close() })
}

func (c *fakeConn) write(ctx context.Context, r *agentv1.WriteRequest) (*agentv1.WriteResponse, error) {
	defer c.until(ctx)()
	n, err := c.TCPConn.Write(r.GetData())
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.GetOffset() != c.accepted {
		return nil, fmt.Errorf("offset %d, have %d: %w", r.GetOffset(), c.accepted, errdefs.ErrOutOfRange)
	}
	c.accepted += uint64(n)
	return &agentv1.WriteResponse{Offset: c.accepted, Closed: err != nil}, ctx.Err()
}

func (c *fakeConn) read(ctx context.Context, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	defer c.until(ctx)()
	buf := make([]byte, r.GetMax())
	n, err := c.TCPConn.Read(buf)
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.sent
	c.sent += uint64(n)
	return &agentv1.ReadResponse{Data: buf[:n], Offset: at, Eof: err == io.EOF}, ctx.Err()
}
