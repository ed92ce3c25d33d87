// Package moves is the client of the service that moves VMs between nodes. It talks to
// the godwitd of this host, or, with a node's certificate, to the controller.
package moves

import (
	"cmp"
	"context"
	"crypto/tls"
	"slices"
	"time"

	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Client implements nodev1.MovesService. It connects with the first call, and again when
// the connection breaks. Errors have errdefs' classes, or are a *record.HeldError.
type Client struct{ conn *record.Client }

var _ nodev1.MovesService = (*Client)(nil)

// Local is the client of a godwitd's socket.
func Local(socket string) *Client { return &Client{conn: record.Local(socket)} }

// Remote is the client of the first of the controllers, each host:port, that answers.
func Remote(addresses []string, config *tls.Config) *Client {
	return &Client{conn: record.Remote(addresses, config)}
}

// Over is the client on the connection of the records.
func Over(conn *record.Client) *Client { return &Client{conn: conn} }

// Close the connection.
func (c *Client) Close() error { return c.conn.Close() }

// wakeTimeout of an order to wake: every node is asked whether the VM fits it.
const wakeTimeout = 30 * time.Second

func do[Q, R any](ctx context.Context, c *Client, method func(nodev1.MovesClient, context.Context, Q) (R, error),
	req Q) (resp R, err error) {
	err = c.conn.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		resp, err = method(nodev1.NewMovesClient(conn), ctx, req)
		return err
	})
	return resp, err
}

// Migrate implements nodev1.MovesService.
func (c *Client) Migrate(ctx context.Context, req *nodev1.MigrateRequest) (*nodev1.StatusResponse, error) {
	return do(ctx, c, nodev1.MovesClient.Migrate, req)
}

// Get implements nodev1.MovesService.
func (c *Client) Get(ctx context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	return do(ctx, c, nodev1.MovesClient.Get, req)
}

// List implements nodev1.MovesService. Who asks for no parts gets them all, the oldest first.
func (c *Client) List(ctx context.Context, req *nodev1.MovesRequest) (*nodev1.MovesResponse, error) {
	if req.GetParts() {
		return do(ctx, c, nodev1.MovesClient.List, req)
	}
	all := &nodev1.MovesResponse{}
	for more := (&nodev1.MovesRequest{Closed: req.GetClosed(), Vm: req.GetVm(), Parts: true}); ; {
		part, err := do(ctx, c, nodev1.MovesClient.List, more)
		if err != nil {
			return nil, err
		}
		all.Moves = append(all.Moves, part.GetMoves()...)
		if more.After = part.GetNext(); more.After == "" {
			break
		}
	}
	slices.SortStableFunc(all.Moves, func(a, b *nodev1.StatusResponse) int {
		return cmp.Compare(a.GetOperation().GetOpenedUnixNano(), b.GetOperation().GetOpenedUnixNano())
	})
	return all, nil
}

// Abort implements nodev1.MovesService.
func (c *Client) Abort(ctx context.Context, req *nodev1.AbortRequest) (*nodev1.StatusResponse, error) {
	return do(ctx, c, nodev1.MovesClient.Abort, req)
}

// Events implements nodev1.MovesService.
func (c *Client) Events(ctx context.Context, req *nodev1.EventsRequest) (*nodev1.EventsResponse, error) {
	return do(ctx, c, nodev1.MovesClient.Events, req)
}

// Recover implements nodev1.MovesService.
func (c *Client) Recover(ctx context.Context, req *nodev1.RecoverRequest) (*nodev1.RecoverResponse, error) {
	return do(ctx, c, nodev1.MovesClient.Recover, req)
}

// Wake implements nodev1.MovesService.
func (c *Client) Wake(ctx context.Context, req *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wakeTimeout)
		defer cancel()
	}
	return do(ctx, c, nodev1.MovesClient.Wake, req)
}

// Announce implements nodev1.MovesService.
func (c *Client) Announce(ctx context.Context, req *nodev1.AnnounceRequest) (*nodev1.AnnounceResponse, error) {
	return do(ctx, c, nodev1.MovesClient.Announce, req)
}

// Nodes implements nodev1.MovesService.
func (c *Client) Nodes(ctx context.Context, req *nodev1.NodesRequest) (*nodev1.NodesResponse, error) {
	return do(ctx, c, nodev1.MovesClient.Nodes, req)
}

// Log implements nodev1.MovesService.
func (c *Client) Log(ctx context.Context, req *nodev1.LogRequest) (*nodev1.LogResponse, error) {
	return do(ctx, c, nodev1.MovesClient.Log, req)
}

// Cordon implements nodev1.MovesService.
func (c *Client) Cordon(ctx context.Context, req *nodev1.CordonRequest) (*nodev1.CordonResponse, error) {
	return do(ctx, c, nodev1.MovesClient.Cordon, req)
}

// Drain implements nodev1.MovesService.
func (c *Client) Drain(ctx context.Context, req *nodev1.DrainRequest) (*nodev1.DrainResponse, error) {
	return do(ctx, c, nodev1.MovesClient.Drain, req)
}

// Watch implements nodev1.MovesService for a godwitd that passes events on.
func (c *Client) Watch(ctx context.Context, req *nodev1.WatchRequest, to nodev1.Moves_WatchServer) error {
	return c.Follow(ctx, req, to.Send)
}

// Follow calls do for each event that req asks for, in order, until ctx ends, do fails, or the
// operation that req names is settled. It goes on after a restart of either daemon: what
// happened meanwhile is told then.
func (c *Client) Follow(ctx context.Context, req *nodev1.WatchRequest, do func(*nodev1.MoveEvent) error) error {
	return Follow(ctx, c, req, do)
}

// Types of events.
const (
	Started        = "MigrationStarted"
	Switching      = "Switching"
	Committed      = "Committed"
	Succeeded      = "Succeeded"
	Aborting       = "Aborting"
	Aborted        = "Aborted"
	Failed         = "Failed"
	Lost           = "Lost"
	Retrying       = "Retrying"
	Retargeted     = "Retargeted"
	CleanupPending = "CleanupPending"
	NodeLost       = "NodeLost"   // of a VM whose node is silent; no operation
	Recovering     = "Recovering" // its snapshot is woken elsewhere
	// of a VM whose wake was ordered and that fits no node; the order's operation is not begun
	NoCapacity  = "WakeNoCapacity"
	Foreign     = "SnapshotForeign" // what was to be deleted of a VM was of another one: it stays; no operation
	NameTwice   = "NodeNameTwice"   // two machines use one name; source is that name, there is no VM and no operation
	Contradicts = "NodeContradicts" // source holds what the records do not bear out; there is no VM and no operation
	// a node that was called lost is back, and has ended a VM that is another's by now; no operation
	Outlived = "Outlived"
)

// Settled reports whether an event of that type is the last of its operation.
func Settled(kind string) bool {
	return kind == Succeeded || kind == Aborted || kind == Failed || kind == Lost
}
