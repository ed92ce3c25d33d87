package client

import (
	"context"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"

	"github.com/containerd/errdefs"
)

// waitBound is how long the guest keeps a Wait, whose caller may have left: ttrpc does not tell it so. A variable for
// the tests.
var waitBound = 10 * time.Minute

// told is a context of which the guest hears another deadline.
type told struct {
	context.Context
	deadline time.Time
}

// Deadline implements context.Context.
func (t told) Deadline() (time.Time, bool) { return t.deadline, true }

// Wait implements agentv1.AgentService. The guest is asked anew now and then.
func (a *Agent) Wait(ctx context.Context, r *agentv1.WaitRequest) (*agentv1.WaitResponse, error) {
	for {
		resp, err := again(ctx, a, func(p *peer) (*agentv1.WaitResponse, error) {
			ask := ctx
			late := time.Now().Add(waitBound)
			if own, bounded := ctx.Deadline(); !bounded || own.After(late) {
				ask = told{ctx, late}
			}
			return agentv1.NewAgentClient(p.client).Wait(ask, r)
		})
		if !errdefs.IsDeadlineExceeded(err) || ctx.Err() != nil {
			return resp, err
		}
		select {
		case <-time.After(againMin): // a guest that answers so at once is not asked without a pause
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
