package record

import (
	"context"

	"github.com/containerd/ttrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// StoreClient asks for the store of the records as a whole, on the connection of a Client.
type StoreClient struct{ *Client }

var _ nodev1.StoreService = StoreClient{}

func (c StoreClient) call(ctx context.Context, method func(nodev1.StoreService, context.Context) (*nodev1.StoreState,
	error)) (state *nodev1.StoreState, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *ttrpc.Client) error {
		state, err = method(nodev1.NewStoreClient(conn), ctx)
		return err
	})
	return state, err
}

// State implements nodev1.StoreService.
func (c StoreClient) State(ctx context.Context, req *nodev1.StateRequest) (*nodev1.StoreState, error) {
	return c.call(ctx, func(s nodev1.StoreService, ctx context.Context) (*nodev1.StoreState, error) {
		return s.State(ctx, req)
	})
}

// Restore implements nodev1.StoreService.
func (c StoreClient) Restore(ctx context.Context, req *nodev1.RestoreRequest) (*nodev1.StoreState, error) {
	return c.call(ctx, func(s nodev1.StoreService, ctx context.Context) (*nodev1.StoreState, error) {
		return s.Restore(ctx, req)
	})
}

// Retire implements nodev1.StoreService.
func (c StoreClient) Retire(ctx context.Context, req *nodev1.RetireRequest) (*nodev1.StoreState, error) {
	return c.call(ctx, func(s nodev1.StoreService, ctx context.Context) (*nodev1.StoreState, error) {
		return s.Retire(ctx, req)
	})
}

// Report implements nodev1.StoreService.
func (c StoreClient) Report(ctx context.Context, req *nodev1.ReportRequest) (*nodev1.StoreState, error) {
	return c.call(ctx, func(s nodev1.StoreService, ctx context.Context) (*nodev1.StoreState, error) {
		return s.Report(ctx, req)
	})
}
