package record

import (
	"context"

	"github.com/containerd/ttrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// PodsClient asks a controller about pods, on the connection of a Client. A controller without Kubernetes answers
// NotImplemented.
type PodsClient struct{ *Client }

var _ nodev1.PodsService = PodsClient{}

// Resolve implements nodev1.PodsService.
func (c PodsClient) Resolve(ctx context.Context, req *nodev1.ResolveRequest) (r *nodev1.ResolveResponse, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		r, err = nodev1.NewPodsClient(conn).Resolve(ctx, req)
		return err
	})
	return r, err
}

// Stopping implements nodev1.PodsService.
func (c PodsClient) Stopping(ctx context.Context, req *nodev1.StoppingRequest) (r *nodev1.StoppingResponse,
	err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		r, err = nodev1.NewPodsClient(conn).Stopping(ctx, req)
		return err
	})
	return r, err
}

// Login implements nodev1.PodsService.
func (c PodsClient) Login(ctx context.Context, req *nodev1.LoginRequest) (r *nodev1.LoginResponse, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		r, err = nodev1.NewPodsClient(conn).Login(ctx, req)
		return err
	})
	return r, err
}
