// Package client is godwit for Go programs, and for the verbs of the command line: it talks to the godwitd and to the
// containerd of one node. Errors have errdefs' classes.
package client

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/moves"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/failpoint"
)

// Client of one node. It connects to godwitd and to containerd with the first call that needs them. It may be used by
// several goroutines at once.
type Client struct {
	configPath string
	daemon     string // socket; empty: as the configuration says
	containerd string // the same
	namespace  string
	guard      record.Guard
	names      *Names
	load       func() (*config.Config, error) // reads the configuration once

	mu    sync.Mutex
	node  *node
	ctr   *containerd.Client
	moves *moves.Client
}

// Option of New. An empty value leaves the default.
type Option func(*Client)

// WithConfig names the node's configuration file. The default is that of godwitd: GODWIT_CONFIG, else
// /etc/godwit/config.toml.
func WithConfig(path string) Option { return func(c *Client) { c.configPath = path } }

// WithDaemon names the socket of godwitd. The default is that of the configuration.
func WithDaemon(socket string) Option { return func(c *Client) { c.daemon = socket } }

// WithContainerd names the socket of containerd. The default is that of the configuration.
func WithContainerd(socket string) Option { return func(c *Client) { c.containerd = socket } }

// WithNamespace names the namespace of containerd in which VMs are looked for. The default is "default".
func WithNamespace(namespace string) Option {
	return func(c *Client) {
		if namespace != "" {
			c.namespace = namespace
		}
	}
}

// WithGuard bounds how long godwitd may be silent under a call.
func WithGuard(guard record.Guard) Option { return func(c *Client) { c.guard = guard } }

// WithNames has clients share the names by which a user has called VMs.
func WithNames(names *Names) Option { return func(c *Client) { c.names = names } }

// New returns a client of this host's node. It connects to nothing yet. The caller closes it.
func New(opts ...Option) *Client {
	c := &Client{namespace: "default", guard: record.DefaultGuard, names: &Names{}}
	for _, opt := range opts {
		opt(c)
	}
	c.load = sync.OnceValues(func() (*config.Config, error) { return config.Load(c.configPath) })
	return c
}

// Namespace is the namespace of containerd in which VMs are looked for.
func (c *Client) Namespace() string { return c.namespace }

// Daemon is the socket of godwitd.
func (c *Client) Daemon() (string, error) {
	if c.daemon != "" {
		return c.daemon, nil
	}
	cfg, err := c.load()
	if err != nil {
		return "", err
	}
	return cfg.DaemonSocket(), nil
}

// Node is the service of godwitd. The connection is made with the first call of Node.
func (c *Client) Node(ctx context.Context) (nodev1.NodeService, error) {
	socket, err := c.Daemon()
	if err != nil {
		return nil, err
	}
	if n := c.connected(); n != nil {
		return n, nil
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, record.Unreachable(socket, err)
	}
	line := c.guard.Client(conn, socket)
	n := &node{NodeService: nodev1.NewNodeClient(line), records: nodev1.NewRecordsClient(line), conn: line,
		looker: record.Local(socket)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.node != nil { // another caller was faster
		go n.Close()
		return c.node, nil
	}
	c.node = n
	return n, nil
}

func (c *Client) connected() *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.node
}

// Moves is godwitd's service of moves. It connects with its first call, and again when the connection breaks.
func (c *Client) Moves() (*moves.Client, error) {
	socket, err := c.Daemon()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moves == nil {
		c.moves = moves.Local(socket)
	}
	return c.moves, nil
}

// Containerd is the client of the node's containerd. Its calls need a namespace in their context. The containerd of a
// daemon that is not the configuration's own is not known: FailedPrecondition, unless WithContainerd names it.
func (c *Client) Containerd() (*containerd.Client, error) {
	address, err := c.containerdSocket()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctr != nil {
		return c.ctr, nil
	}
	ctr, err := containerd.New(address,
		containerd.WithExtraDialOpts(append(failpoint.Client(), grpc.WithContextDialer(dial))))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w: %w", address, errdefs.ErrUnavailable, err)
	}
	c.ctr = ctr
	return ctr, nil
}

func (c *Client) containerdSocket() (string, error) {
	if c.containerd != "" {
		return c.containerd, nil
	}
	cfg, err := c.load()
	if err != nil {
		return "", err
	}
	if c.daemon != "" && c.daemon != cfg.DaemonSocket() {
		return "", fmt.Errorf("the containerd of the node with socket %s is not known. "+
			"Name its socket with --containerd: %w", c.daemon, errdefs.ErrFailedPrecondition)
	}
	return cfg.Containerd.Address, nil
}

// dial connects to containerd's socket, and waits for no file to appear.
func dial(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
}

// Close the connections.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctr != nil {
		_ = c.ctr.Close()
	}
	if c.moves != nil {
		_ = c.moves.Close()
	}
	if c.node != nil {
		return c.node.Close()
	}
	return nil
}
