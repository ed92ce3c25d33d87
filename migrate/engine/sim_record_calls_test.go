package engine

import (
	"context"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func (r simRecords) Get(ctx context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	return r.s.hears(change{}, func() (*nodev1.Record, error) {
		return stored(&r.s.schedule, ctx, r.RecordsService.Get, req)
	})
}

func (r simRecords) Advance(ctx context.Context, req *nodev1.AdvanceRequest) (*nodev1.Record, error) {
	do := func(ctx context.Context, req *nodev1.AdvanceRequest) (*nodev1.Record, error) {
		return r.changed(ctx, func() (*nodev1.Record, error) { return r.RecordsService.Advance(ctx, req) })
	}
	if r.quiet {
		return do(ctx, req)
	}
	r.stumbled(req)
	var in change
	if req.GetPhase() == nodev1.Phase_PHASE_REVERTING {
		in.to = hands{req.GetGeneration() + 2, r.s.source(ctx)}
	}
	return r.s.hears(in, func() (*nodev1.Record, error) { return stored(&r.s.schedule, ctx, do, req) })
}

func (r simRecords) Commit(ctx context.Context, req *nodev1.CommitRequest) (*nodev1.Record, error) {
	in := change{to: hands{req.GetGeneration() + 1, req.GetOwner().GetNode()}}
	return r.s.hears(in, func() (*nodev1.Record, error) {
		return stored(&r.s.schedule, ctx, func(ctx context.Context, req *nodev1.CommitRequest) (*nodev1.Record, error) {
			rec, err := r.changed(ctx, func() (*nodev1.Record, error) { return r.RecordsService.Commit(ctx, req) })
			if err == nil && r.after != nil {
				r.after()
			}
			return rec, err
		}, req)
	})
}

func (r simRecords) Finish(ctx context.Context, req *nodev1.FinishRequest) (*nodev1.Record, error) {
	return stored(&r.s.schedule, ctx, func(ctx context.Context, req *nodev1.FinishRequest) (*nodev1.Record, error) {
		return r.changed(ctx, func() (*nodev1.Record, error) { return r.RecordsService.Finish(ctx, req) })
	}, req)
}

func (r simRecords) Retry(ctx context.Context, req *nodev1.RetryRequest) (*nodev1.Record, error) {
	return stored(&r.s.schedule, ctx, func(ctx context.Context, req *nodev1.RetryRequest) (*nodev1.Record, error) {
		return r.changed(ctx, func() (*nodev1.Record, error) { return r.RecordsService.Retry(ctx, req) })
	}, req)
}
