package cli

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/ttrpc"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// note says beside the results, on standard error, what is no error: a line, or a document.
func (o *options) note(cmd *cobra.Command, text string) {
	if o.output == "json" {
		_ = json.NewEncoder(cmd.ErrOrStderr()).Encode(map[string]string{"note": text})
		return
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "godwit:", text)
}

// patience waits for a daemon that has answered and is started again, which before is called for.
func (o *options) patience(cmd *cobra.Command, before func()) moves.Patience {
	return moves.Patience{Met: true, Waits: func(cause error) {
		before()
		o.note(cmd, fmt.Sprintf("waiting for godwitd, and going on then: %v", cause))
	}}
}

// daemonNode is the daemon's service. What only looks is asked on a connection that is made again
// when it breaks: the daemon may be started again meanwhile.
type daemonNode struct {
	nodev1.NodeService
	conn   *ttrpc.Client
	looker *record.Client
}

// Status implements nodev1.NodeService.
func (d *daemonNode) Status(ctx context.Context, req *nodev1.StatusRequest) (resp *nodev1.StatusResponse, err error) {
	err = d.looker.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		resp, err = nodev1.NewNodeClient(conn).Status(ctx, req)
		return err
	})
	return resp, err
}

// Recorded implements nodev1.NodeService.
func (d *daemonNode) Recorded(ctx context.Context, req *nodev1.GetRequest) (rec *nodev1.Record, err error) {
	err = d.looker.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		rec, err = nodev1.NewNodeClient(conn).Recorded(ctx, req)
		return err
	})
	return rec, err
}

// Close the connections.
func (d *daemonNode) Close() error {
	_ = d.looker.Close()
	return d.conn.Close()
}
