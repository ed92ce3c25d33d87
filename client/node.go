package client

import (
	"context"

	"github.com/containerd/ttrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// node is the daemon's service. What only looks is asked on a connection that is made again
// when it breaks: the daemon may be started again meanwhile.
type node struct {
	nodev1.NodeService
	conn    *ttrpc.Client
	records nodev1.RecordsService
	looker  *record.Client
}

// Status implements nodev1.NodeService.
func (d *node) Status(ctx context.Context, req *nodev1.StatusRequest) (resp *nodev1.StatusResponse, err error) {
	err = d.looker.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		resp, err = nodev1.NewNodeClient(conn).Status(ctx, req)
		return err
	})
	return resp, err
}

// Recorded implements nodev1.NodeService.
func (d *node) Recorded(ctx context.Context, req *nodev1.GetRequest) (rec *nodev1.Record, err error) {
	err = d.looker.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		rec, err = nodev1.NewNodeClient(conn).Recorded(ctx, req)
		return err
	})
	return rec, err
}

// History implements nodev1.NodeService.
func (d *node) History(ctx context.Context, req *nodev1.HistoryRequest) (resp *nodev1.HistoryResponse, err error) {
	err = d.looker.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		resp, err = nodev1.NewNodeClient(conn).History(ctx, req)
		return err
	})
	return resp, err
}

// Close the connections.
func (d *node) Close() error {
	_ = d.looker.Close()
	return d.conn.Close()
}
