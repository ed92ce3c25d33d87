package engine

import (
	"context"
	"fmt"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// flaky is the records as an engine reaches them.
type flaky struct {
	nodev1.RecordsService
	world *world
}

func via[Q, R any](ctx context.Context, f *flaky, name string, method func(context.Context, Q) (R, error),
	req Q) (resp R, err error) {
	failed := f.world.do(ctx, name, func() error { resp, err = method(context.WithoutCancel(ctx), req); return err })
	return resp, failed
}

func (f *flaky) Get(ctx context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	return via(ctx, f, "Get", f.RecordsService.Get, req)
}

func (f *flaky) Ensure(ctx context.Context, req *nodev1.EnsureRequest) (*nodev1.Record, error) {
	return via(ctx, f, "Ensure", f.RecordsService.Ensure, req)
}

func (f *flaky) Open(ctx context.Context, req *nodev1.OpenRequest) (*nodev1.Record, error) {
	return via(ctx, f, "Open", f.RecordsService.Open, req)
}

func (f *flaky) Advance(ctx context.Context, req *nodev1.AdvanceRequest) (*nodev1.Record, error) {
	return via(ctx, f, "Advance", f.RecordsService.Advance, req)
}

func (f *flaky) Place(ctx context.Context, req *nodev1.PlaceRequest) (*nodev1.Record, error) {
	return via(ctx, f, "Place", f.RecordsService.Place, req)
}

func (f *flaky) Commit(ctx context.Context, req *nodev1.CommitRequest) (*nodev1.Record, error) {
	return via(ctx, f, "Commit", f.RecordsService.Commit, req)
}

func (f *flaky) Retry(ctx context.Context, req *nodev1.RetryRequest) (*nodev1.Record, error) {
	return via(ctx, f, "Retry", f.RecordsService.Retry, req)
}

func (f *flaky) Finish(ctx context.Context, req *nodev1.FinishRequest) (*nodev1.Record, error) {
	return via(ctx, f, "Finish", f.RecordsService.Finish, req)
}

// Disown is for a VM of which nothing is left.
func (f *flaky) Disown(ctx context.Context, req *nodev1.DisownRequest) (*nodev1.Record, error) {
	f.world.mu.Lock()
	if s := f.world.state[req.GetNode()]; s != gone {
		f.world.broken = append(f.world.broken, fmt.Sprintf("Disown of a VM that is %s on %s", s, req.GetNode()))
	}
	f.world.mu.Unlock()
	return via(ctx, f, "Disown", f.RecordsService.Disown, req)
}

func (f *flaky) Trim(ctx context.Context, req *nodev1.TrimRequest) (*nodev1.Record, error) {
	return via(ctx, f, "Trim", f.RecordsService.Trim, req)
}

func (f *flaky) Name(ctx context.Context, req *nodev1.NameRequest) (*nodev1.Record, error) {
	return via(ctx, f, "Name", f.RecordsService.Name, req)
}

func (f *flaky) Pin(ctx context.Context, req *nodev1.PinRequest) (*nodev1.Record, error) {
	return via(ctx, f, "Pin", f.RecordsService.Pin, req)
}

func (f *flaky) Delete(ctx context.Context, req *nodev1.DeleteRequest) (*nodev1.Record, error) {
	return via(ctx, f, "Delete", f.RecordsService.Delete, req)
}

func (f *flaky) Owed(ctx context.Context, req *nodev1.OwedRequest) (*nodev1.OwedResponse, error) {
	return via(ctx, f, "Owed", f.RecordsService.Owed, req)
}

func (f *flaky) Clear(ctx context.Context, req *nodev1.ClearRequest) (*nodev1.ClearResponse, error) {
	return via(ctx, f, "Clear", f.RecordsService.Clear, req)
}

func (f fault) strike(name string) error {
	if f.kill != nil {
		f.kill()
		return context.Canceled
	}
	return fmt.Errorf("%s: %w", name, f.err)
}
