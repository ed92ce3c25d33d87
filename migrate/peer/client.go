package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"

	"godwit.dev/godwit/api/record"
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
	Self  string // served by Local, without the network
	Local nodev1.PeerService
	// TLS is the config to reach a node with, which must prove to be that node; nil: there
	// are no other nodes.
	TLS func(node string) (*tls.Config, error)

	mu    sync.Mutex
	conns map[string]*conn // by node
}

type conn struct {
	address string
	client  *ttrpc.Client
}

var _ engine.Peers = (*Peers)(nil)

// Peer implements engine.Peers. The connection is made with the first call.
func (p *Peers) Peer(node string) (nodev1.PeerService, error) {
	if node == p.Self {
		return p.Local, nil
	}
	info, err := p.Node(node)
	switch {
	case err != nil:
		return nil, err
	case info.GetAddress() == "":
		return nil, fmt.Errorf("node %s has no peer listener (peer.listen): %w", node, errdefs.ErrFailedPrecondition)
	case p.TLS == nil:
		return nil, fmt.Errorf("reach node %s: this node has no certificate (godwit node init): %w", node, errdefs.ErrFailedPrecondition)
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
	p.conns = nil
	return errors.Join(errs...)
}

func (p *Peers) dial(ctx context.Context, node, address string) (*ttrpc.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.conns[node]; c != nil && c.address == address {
		return c.client, nil
	}
	config, err := p.TLS(node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	raw, err := (&tls.Dialer{Config: config, NetDialer: &net.Dialer{}}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if p.conns == nil {
		p.conns = map[string]*conn{}
	}
	c := &conn{address: address}
	c.client = ttrpc.NewClient(raw, ttrpc.WithOnClose(func() { go p.drop(node, c) }))
	if old := p.conns[node]; old != nil {
		go old.client.Close()
	}
	p.conns[node] = c
	return c.client, nil
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

// on makes one call. What the node itself has answered keeps its class; anything else is
// a LinkError.
func on[Q, R any](ctx context.Context, r *remote, method func(nodev1.PeerService, context.Context, Q) (R, error), req Q) (resp R, err error) {
	client, err := r.peers.dial(ctx, r.node, r.address)
	if err != nil {
		return resp, &engine.LinkError{Node: r.node, Err: err}
	}
	resp, err = method(nodev1.NewPeerClient(client), ctx, req)
	if _, answered := status.FromError(err); answered {
		return resp, record.FromWire(err)
	}
	if ctx.Err() != nil {
		return resp, fmt.Errorf("ask node %s: %w", r.node, err)
	}
	return resp, &engine.LinkError{Node: r.node, Err: err}
}
