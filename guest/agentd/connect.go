package agentd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"github.com/containerd/errdefs"
)

const (
	// maxConnections bounds those that were not removed.
	maxConnections = 256
	// dialTime is what a program of the guest has to accept a connection.
	dialTime = 10 * time.Second
)

// connection is one to a port of the guest's localhost.
type connection struct {
	port uint32
	conn *net.TCPConn
	in   *input
	out  *output
}

// writer is the half of a connection that the host writes to.
type writer struct{ *net.TCPConn }

func (w writer) Close() error { return w.CloseWrite() }

// Connect implements agentv1.AgentService.
func (s *Service) Connect(ctx context.Context, r *agentv1.ConnectRequest) (*agentv1.ConnectResponse, error) {
	if r.Port == 0 || r.Port > 65535 {
		return nil, fmt.Errorf("connect: port %d: %w", r.Port, errdefs.ErrInvalidArgument)
	}
	known, err := s.knowsConnection(r)
	if known || err != nil {
		return &agentv1.ConnectResponse{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := dialLocalhost(ctx, r.Port)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	file, err := conn.File()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect: %w", err), conn.Close())
	}
	c := &connection{r.Port, conn, newInput(), newOutput(s.opts.Poke)}
	if known, err := s.keepConnection(r, c); known || err != nil { // by a call that was repeated
		return &agentv1.ConnectResponse{}, errors.Join(err, file.Close(), conn.Close())
	}
	go c.in.pump(writer{conn}, false)
	c.out.carry(file, false)
	return &agentv1.ConnectResponse{}, nil
}

// dialLocalhost reaches what listens for IPv4, or else for IPv6, as a client on the same host does.
func dialLocalhost(ctx context.Context, port uint32) (*net.TCPConn, error) {
	var d net.Dialer
	var errs []error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	}
	return nil, fmt.Errorf("%w: %w", errdefs.ErrUnavailable, err)
}

// keepConnection is knowsConnection, and keeps c if there is none.
func (s *Service) keepConnection(r *agentv1.ConnectRequest, c *connection) (known bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, err = s.hasConnection(r); !known && err == nil {
		s.connections[r.Id] = c
	}
	return known, err
}

// knowsConnection reports whether a connection of that id is there, and an error if none can be made.
func (s *Service) knowsConnection(r *agentv1.ConnectRequest) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasConnection(r)
}

// hasConnection is knowsConnection for a caller that holds the lock.
func (s *Service) hasConnection(r *agentv1.ConnectRequest) (bool, error) {
	id, has := r.Id, s.connections[r.Id]
	switch {
	case has != nil && has.port != r.Port:
		return false, fmt.Errorf("connect: id %q is that of a connection to port %d: %w", id, has.port,
			errdefs.ErrFailedPrecondition)
	case has != nil:
		return true, nil
	case id == "" || s.processes[id] != nil:
		return false, fmt.Errorf("connect: id %q is that of a process: %w", id, errdefs.ErrInvalidArgument)
	case len(s.connections) >= maxConnections:
		return false, fmt.Errorf("connect: there are %d connections: %w", maxConnections, errdefs.ErrResourceExhausted)
	}
	return false, nil
}

// connection finds one; nil: there is none.
func (s *Service) connection(id string) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections[id]
}

// removeConnection forgets a connection and reports whether there was one.
func (s *Service) removeConnection(id string) bool {
	s.mu.Lock()
	c := s.connections[id]
	delete(s.connections, id)
	s.mu.Unlock()
	if c == nil {
		return false
	}
	c.close()
	return true
}

// dropConnections forgets all: the host that they were for is another one, or has lost them.
func (s *Service) dropConnections() {
	s.mu.Lock()
	all := s.connections
	s.connections = make(map[string]*connection)
	s.mu.Unlock()
	for _, c := range all {
		c.close()
	}
}

// close resets what is open still: no end of a stream is feigned.
func (c *connection) close() {
	_ = c.conn.SetLinger(0)
	_ = c.conn.CloseRead() // what waits for a byte ends
	_ = c.conn.Close()
	c.in.stop()
	c.out.discard()
}

// inputOf finds who takes what the host writes under an id.
func (s *Service) inputOf(id string) (*input, error) {
	if c := s.connection(id); c != nil {
		return c.in, nil
	}
	p, err := s.find(id)
	if err != nil {
		return nil, err
	}
	return p.stdin, nil
}
