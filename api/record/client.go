package record

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"

	"godwit.dev/godwit/internal/link"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Bounds of a client that is not told otherwise.
const (
	connectTimeout = 5 * time.Second
	callTimeout    = 10 * time.Second // of a call whose context has no deadline
)

// Client is a connection to the records that is made again when it breaks. Every call is
// idempotent. So one that broke midway is sent once more. After that it answers Unavailable,
// naming the address, and never an older answer. A connection on which a call runs out of time
// and nothing is heard meanwhile is not asked again. Errors have errdefs' classes, or are a
// *HeldError.
type Client struct {
	address string
	dial    func(ctx context.Context, mute int) (net.Conn, error) // mute counts the connections that were given up as such

	mu      sync.Mutex
	conn    *connection // nil: none yet, or broken
	dialing *dialing    // nil: none is being made
	mute    int
	closed  bool
}

// dialing is a connection that is being made, for all who wait for one: a handshake costs both ends
// more than most calls do. conn and err are known once done is closed.
type dialing struct {
	done chan struct{}
	conn *connection
	err  error
}

type connection struct {
	*ttrpc.Client
	line *link.Conn
}

var _ nodev1.RecordsService = (*Client)(nil)

// Dial connects to godwitd's local socket.
func Dial(ctx context.Context, socket string) (*Client, error) {
	return connect(ctx, Local(socket))
}

// Local is Dial that connects with the first call.
func Local(socket string) *Client {
	var d net.Dialer
	return newClient(socket, func(ctx context.Context, _ int) (net.Conn, error) {
		return d.DialContext(ctx, "unix", socket)
	})
}

// DialTLS connects to the controller, host:port.
func DialTLS(ctx context.Context, address string, config *tls.Config) (*Client, error) {
	return connect(ctx, Remote([]string{address}, config))
}

// Remote is DialTLS that connects with the first call, to the first controller that answers: all
// of them keep the same records. After one that took a connection and has not answered, the next
// one is the first. config holds the node's certificate and verifies the controller's.
func Remote(addresses []string, config *tls.Config) *Client {
	return RemoteFrom(nil, addresses, config)
}

// RemoteFrom is Remote from an address of this host; nil: any.
func RemoteFrom(own net.Addr, addresses []string, config *tls.Config) *Client {
	d := tls.Dialer{NetDialer: link.Dialer(), Config: config}
	d.NetDialer.LocalAddr = own
	return newClient(strings.Join(addresses, ","), func(ctx context.Context, mute int) (net.Conn, error) {
		first := mute % len(addresses)
		return reach(ctx, slices.Concat(addresses[first:], addresses[:first]),
			func(ctx context.Context, address string) (net.Conn, error) {
				return d.DialContext(ctx, "tcp", address)
			})
	})
}

func newClient(address string, dial func(context.Context, int) (net.Conn, error)) *Client {
	return &Client{address: address, dial: dial}
}

func connect(ctx context.Context, c *Client) (*Client, error) {
	if _, err := c.get(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Address is what the client dials.
func (c *Client) Address() string { return c.address }

// Close ends the connection; calls under way and later ones answer Unavailable.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

// get answers the connection, which is made once for all who ask meanwhile.
func (c *Client) get(ctx context.Context) (*connection, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, c.unavailable(net.ErrClosed)
	}
	if conn := c.conn; conn != nil {
		c.mu.Unlock()
		return conn, nil
	}
	d := c.dialing
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		c.dialing = d
		go c.make(ctx, d, c.mute)
	}
	c.mu.Unlock()
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return nil, c.unavailable(ctx.Err())
	}
}

// make a connection in the time that the first who asked has. That this caller waits no more
// does not end it for the others.
func (c *Client) make(ctx context.Context, d *dialing, mute int) {
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
	defer cancel()
	if deadline, ok := ctx.Deadline(); ok {
		bound, cancel = context.WithDeadline(bound, deadline)
		defer cancel()
	}
	raw, err := c.dial(bound, mute)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(d.done)
	c.dialing = nil
	if err == nil && c.closed {
		_ = raw.Close()
		err = net.ErrClosed
	}
	if err != nil {
		d.err = c.unavailable(err)
		return
	}
	made := &connection{line: link.Listen(raw)}
	made.Client = ttrpc.NewClient(made.line, ttrpc.WithOnClose(func() { c.drop(made, false) }))
	c.conn, d.conn = made, made
}

// drop forgets a connection that broke, or is mute.
func (c *Client) drop(gone *connection, mute bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != gone {
		return
	}
	c.conn = nil
	if mute {
		c.mute++
	}
}

// late forgets a connection on which a call ran out of time and nothing was heard since it
// began: its host may be gone, or the program there hang. Other calls on it break, and are made
// again on the next one.
func (c *Client) late(ctx context.Context, conn *connection, begun time.Time) {
	if !link.TimedOut(ctx) || !conn.line.Mute(begun) {
		return
	}
	c.drop(conn, true)
	_ = conn.Close()
}

func (c *Client) unavailable(err error) error { return Unreachable(c.address, err) }

// call is Do for one of the methods of the records.
func call[Q, R any](ctx context.Context, c *Client, method func(nodev1.RecordsService, context.Context, Q) (R, error),
	req Q) (resp R, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		resp, err = method(nodev1.NewRecordsClient(conn), ctx, req)
		return err
	})
	return resp, err
}

// Do makes one idempotent call on the connection, and once more if that breaks under it.
func (c *Client) Do(ctx context.Context, do func(context.Context, *ttrpc.Client) error) error {
	outer := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	var broke error
	for range 2 {
		conn, err := c.get(ctx)
		if err != nil {
			return err
		}
		begun := time.Now()
		err = do(ctx, conn.Client)
		if _, answered := status.FromError(err); answered {
			return FromWire(err)
		}
		c.late(ctx, conn, begun)
		if outer.Err() != nil {
			return fmt.Errorf("ask godwitd at %s: %w", c.address, err)
		}
		if ctx.Err() != nil {
			return c.unavailable(fmt.Errorf("no answer within %s", callTimeout))
		}
		_ = conn.Close()
		c.drop(conn, false)
		broke = err
	}
	return c.unavailable(broke)
}
