package engine

import (
	"context"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// watchInterval is how often the driver of a move looks for orders that came by another controller.
const watchInterval = time.Second

// watchOrders cuts a step of a move before its commit once the record says that it is in vain: an order
// at another controller is a change of the record, and nothing else here. The caller calls stop.
func (e *Engine) watchOrders(ctx context.Context, r *run) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(watchInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if !r.early() {
				continue
			}
			if rec, err := e.Records.Get(ctx, &nodev1.GetRequest{Vm: r.vm}); err == nil {
				r.cutIfSuperseded(rec.GetOperation())
			}
		}
	}()
	return func() { cancel(); <-done }
}

// early reports whether the step under way can be called off.
func (r *run) early() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return abortable(r.phase) && r.phase != nodev1.Phase_PHASE_PENDING
}

// cutIfSuperseded cuts the step under way if the operation that the record has says that nothing comes of
// it. No attempt that is undone begins again: however old now is, a step that it cuts is in vain.
func (r *run) cutIfSuperseded(now *nodev1.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	undone := now.GetAttempt() == r.attempt && now.GetPhase() == nodev1.Phase_PHASE_ABORTING
	if abortable(r.phase) && (now.GetId() != r.id || now.GetAttempt() > r.attempt || undone) {
		r.interrupt()
	}
}
