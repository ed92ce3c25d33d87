package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/internal/link"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Registry is what is known of the nodes.
type Registry interface {
	Node(name string) (*nodev1.NodeInfo, error)
	Nodes() []*nodev1.NodeInfo
	Leads(self, controller string) bool
}

// Peers is the controller's way to the nodes. It implements engine.Peers.
type Peers struct {
	Registry
	Self  string             // served by Local, without the network
	Local nodev1.PeerService // nil: this controller has no VMs
	// TLS is the config to reach a node with, which must prove to be that node; nil: there
	// are no other nodes.
	TLS func(node string) (*tls.Config, error)

	mu      sync.Mutex
	conns   map[string]*conn // by node
	dialing map[target]*dialing
	closed  bool
}

type target struct{ node, address string }

type conn struct {
	address string
	client  *ttrpc.Client
	line    *link.Conn
}

// dialing is a connection that is being made; c and err are known once done is closed.
type dialing struct {
	done chan struct{}
	c    *conn
	err  error
}

var _ engine.Peers = (*Peers)(nil)

// Peer implements engine.Peers. The connection is made with the first call.
func (p *Peers) Peer(node string) (nodev1.PeerService, error) {
	if node == p.Self && p.Local != nil {
		return p.Local, nil
	}
	info, err := p.Node(node)
	switch {
	case err != nil:
		return nil, err
	case info.GetControllerOnly() || node == p.Self:
		return nil, fmt.Errorf("%s is a controller without VMs: %w", node, errdefs.ErrFailedPrecondition)
	case info.GetAddress() == "":
		return nil, fmt.Errorf("node %s has no peer listener (peer.listen): %w", node, errdefs.ErrFailedPrecondition)
	case p.TLS == nil:
		return nil, fmt.Errorf("reach node %s: this node has no certificate (godwit node init): %w", node,
			errdefs.ErrFailedPrecondition)
	}
	return &remote{peers: p, node: node, address: info.GetAddress()}, nil
}

// Drives implements engine.Peers.
func (p *Peers) Drives(controller string) bool { return p.Leads(p.Self, controller) }

// Close the connections.
func (p *Peers) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, c := range p.conns {
		errs = append(errs, c.client.Close())
	}
	p.conns, p.closed = nil, true
	return errors.Join(errs...)
}

// connect answers the connection to a node. One is made at a time. A caller that wants it
// meanwhile waits for that, within ctx, and none waits for another node's.
func (p *Peers) connect(ctx context.Context, to target) (*conn, error) {
	p.mu.Lock()
	if c := p.conns[to.node]; c != nil && c.address == to.address {
		p.mu.Unlock()
		return c, nil
	}
	d := p.dialing[to]
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		if p.dialing == nil {
			p.dialing = map[target]*dialing{}
		}
		p.dialing[to] = d
		go p.dial(context.WithoutCancel(ctx), to, d) // others wait for it too
	}
	p.mu.Unlock()
	select {
	case <-d.done:
		return d.c, d.err
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to %s: %w", to.address, ctx.Err())
	}
}

func (p *Peers) dial(ctx context.Context, to target, d *dialing) {
	defer close(d.done)
	raw, err := p.reach(ctx, to)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.dialing, to)
	switch {
	case err != nil:
		d.err = err
	case p.closed:
		_ = raw.Close()
		d.err = net.ErrClosed
	default:
		d.c = p.adopt(to, raw)
	}
}

func (p *Peers) reach(ctx context.Context, to target) (net.Conn, error) {
	config, err := p.TLS(to.node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return (&tls.Dialer{Config: config, NetDialer: link.Dialer()}).DialContext(ctx, "tcp", to.address)
}

// adopt makes raw the connection to a node.
func (p *Peers) adopt(to target, raw net.Conn) *conn {
	c := &conn{address: to.address, line: link.Listen(raw)}
	c.client = ttrpc.NewClient(c.line, ttrpc.WithOnClose(func() { go p.drop(to.node, c) }))
	if old := p.conns[to.node]; old != nil {
		go old.client.Close()
	}
	if p.conns == nil {
		p.conns = map[string]*conn{}
	}
	p.conns[to.node] = c
	return c
}

func (p *Peers) drop(node string, broken *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns[node] == broken {
		delete(p.conns, node)
	}
}

// remote is one node.
type remote struct {
	peers         *Peers
	node, address string
}

// silence is how long nothing is heard of a node that counts as one that does not answer. A
// variable for the tests.
var silence = link.Gone

// on makes one call. What the node itself has answered is bounded and clean, an error keeps its class;
// anything else is a LinkError.
func on[Q any, R proto.Message](ctx context.Context, r *remote, method func(nodev1.PeerService, context.Context, Q) (R,
	error), req Q) (resp R, err error) {
	c, err := r.peers.connect(ctx, target{r.node, r.address})
	if err != nil {
		return resp, &engine.LinkError{Node: r.node, Err: err}
	}
	resp, err = method(nodev1.NewPeerClient(c.client), ctx, req)
	if _, answered := status.FromError(err); answered {
		if err == nil {
			controller.SanitizeAnswer(resp)
		}
		return resp, controller.AnsweredError(err)
	}
	switch {
	case ctx.Err() == nil:
	case link.TimedOut(ctx) && c.line.Mute(time.Now().Add(-silence)):
		// The connection stays: a VM may be on its way under another call. Where the host is
		// gone, TCP ends it.
		err = fmt.Errorf("nothing was heard of it for %v: %w", silence, err)
	default:
		return resp, fmt.Errorf("ask node %s: %w", r.node, err)
	}
	return resp, &engine.LinkError{Node: r.node, Err: err}
}
