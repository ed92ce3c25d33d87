package control

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/pki"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Serve serves the records to the nodes. Nodes may join here as long as the CA's key lies in state_dir. The server has
// no services yet.
func (c *Controller) Serve(ctx context.Context, server *ttrpc.Server, l net.Listener, id *pki.Identity) error {
	authority, err := pki.OpenAuthority(c.Config.PKIDir())
	switch {
	case errors.Is(err, os.ErrNotExist):
		authority = nil
	case err != nil:
		return errors.Join(err, l.Close())
	default:
		authority.Taken = func(node string) error { return c.Cluster.Free(ctx, c.Whole, node) }
	}
	nodev1.RegisterRecordsService(server, c.Records)
	nodev1.RegisterStoreService(server, c.Whole)
	nodev1.RegisterMovesService(server, c.Moves)
	if c.Pods != nil {
		nodev1.RegisterPodsService(server, c.Pods)
	}
	return controller.ServeTLS(ctx, server, l, id, authority, &c.Doubles)
}
