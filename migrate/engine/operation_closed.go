package engine

import (
	"context"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// settled ends the run of an operation that is not the open one any more. A hibernate
// that a wake elsewhere has closed, because this node did not answer, still has its VM
// here, voted and stopped: it is released as the hibernate would have done.
func (e *Engine) settled(ctx context.Context, r *run) (bool, error) {
	if r.kind != nodev1.Kind_KIND_HIBERNATE {
		return true, nil
	}
	err := e.rounds.stray(ctx, r.vm, nil)
	return err == nil, err
}
