package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// minStallLook is the least between two looks whether bytes move, of which a stall has ten.
const minStallLook = time.Millisecond

// watched ends the context that it answers, with a cause, once nothing of the transfer has
// moved for Options.Stall, where the order says so. The caller calls stop.
func (e *Engine) watched(ctx context.Context, op *nodev1.Operation) (watched context.Context, stop func()) {
	if !slices.Contains(op.GetAbortOn(), moves.AbortOnStall) {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(max(e.opts.Stall/10, minStallLook))
		defer tick.Stop()
		last, since := "", time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			status := e.progress(ctx, &nodev1.StatusResponse{Operation: op})
			if now := fmt.Sprint(status.GetStep(), " ", status.GetDone(), " ",
				status.GetTransfer().GetSentBytes()); now != last {
				last, since = now, time.Now()
			}
			if time.Since(since) > e.opts.Stall {
				cancel(fmt.Errorf("nothing has moved for %v (%s): %w", e.opts.Stall, last, errdefs.ErrAborted))
				return
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}
