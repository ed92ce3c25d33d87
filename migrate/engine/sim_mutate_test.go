package engine

import (
	"context"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/model"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// mutate builds a mutation of the controller into its steps; the function takes it back.
func mutate(m model.Mutation) func() {
	replace := func(phase nodev1.Phase, do func(context.Context, *Engine, *nodev1.Record) error) func() {
		before := move[phase]
		move[phase] = step{name: before.name, do: do}
		return func() { move[phase] = before }
	}
	switch m {
	case model.CommitUnprepared:
		return replace(nodev1.Phase_PHASE_SWITCHING, func(ctx context.Context, e *Engine, rec *nodev1.Record) error {
			op := rec.GetOperation()
			receipt, err := record.ParseReceipt(op.GetReceipt())
			if err != nil {
				return err
			}
			receipt.Stopped = true
			return e.commit(ctx, op, &nodev1.Owner{Node: op.GetDestination()}, receipt.String())
		})
	case model.DestroySourceBeforeRunning:
		return replace(nodev1.Phase_PHASE_COMMITTED, func(ctx context.Context, e *Engine, rec *nodev1.Record) error {
			op := rec.GetOperation()
			_, err := ask(ctx, e.core, op.GetSource(), nodev1.PeerService.Release, &nodev1.PeerReleaseRequest{Vm: op.GetVm(),
				Ref: ref(op), Digest: op.GetDigest(), Owner: op.GetDestination()})
			if err != nil {
				return err
			}
			return runMoved(ctx, e, rec)
		})
	}
	return func() {}
}
