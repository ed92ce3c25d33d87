package nodeagent

import (
	"context"

	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Local is the godwitd of a socket. It connects with its first call, and again when the connection breaks.
type Local struct {
	conn  *record.Client
	moves *moves.Client
}

var _ Daemon = (*Local)(nil)

// LocalDaemon is the client of a godwitd's socket. The caller closes it.
func LocalDaemon(socket string) *Local {
	conn := record.Local(socket)
	return &Local{conn, moves.Over(conn)}
}

// Close the connection.
func (l *Local) Close() error { return l.conn.Close() }

// Checkpoint implements Daemon. The call is repeated on a new connection: its id makes it the same order.
func (l *Local) Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (s *nodev1.StatusResponse, err error) {
	err = l.conn.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		s, err = nodev1.NewNodeClient(conn).Checkpoint(ctx, req)
		return err
	})
	return s, err
}

// Status implements Daemon.
func (l *Local) Status(ctx context.Context, req *nodev1.StatusRequest) (s *nodev1.StatusResponse, err error) {
	err = l.conn.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		s, err = nodev1.NewNodeClient(conn).Status(ctx, req)
		return err
	})
	return s, err
}

// Abort implements Daemon.
func (l *Local) Abort(ctx context.Context, req *nodev1.AbortRequest) (*nodev1.StatusResponse, error) {
	return l.moves.Abort(ctx, req)
}
