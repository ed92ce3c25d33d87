package shim

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/config"
)

// dishonestGuest is a guest that does not do what it says.
type dishonestGuest struct {
	*fakeAgent
	kill  func(ctx context.Context) error
	setup func(ctx context.Context) error
}

func (l *dishonestGuest) Kill(ctx context.Context, r *agentv1.KillRequest) (*agentv1.KillResponse, error) {
	if l.kill == nil {
		return l.fakeAgent.Kill(ctx, r)
	}
	return &agentv1.KillResponse{}, l.kill(ctx)
}

func (l *dishonestGuest) Setup(ctx context.Context, r *agentv1.SetupRequest) (*agentv1.SetupResponse, error) {
	if l.setup == nil {
		return l.fakeAgent.Setup(ctx, r)
	}
	return nil, l.setup(ctx)
}

// SIGKILL ends the VM of a guest that says it has killed init, or that init is gone, and never reports its end. State,
// Wait and Delete go on as after any other.
func TestKillOfADishonestGuest(t *testing.T) {
	defer func(d time.Duration) { killBound = d }(killBound)
	killBound = 50 * time.Millisecond
	for name, answer := range map[string]error{
		"killed": nil, "gone": fmt.Errorf("process already finished: %w", errdefs.ErrNotFound),
		"nonsense": errdefs.ErrDataLoss,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.guest = func(a *fakeAgent) Agent {
				return &dishonestGuest{fakeAgent: a, kill: func(context.Context) error { return answer }}
			}
			w.running()
			_, err := w.service.Kill(ctxNS(t), &taskapi.KillRequest{ID: "vm", Signal: 9})
			if err != nil && !strings.Contains(err.Error(), "already finished") {
				t.Errorf("Kill = %v", err)
			}
			r, err := w.service.Wait(ctxNS(t), &taskapi.WaitRequest{ID: "vm"})
			if err != nil || r.GetExitStatus() != killed {
				t.Errorf("Wait = %v, %v", r, err)
			}
			w.must("delete", w.delete())
			w.nothingLeft()
		})
	}
}

// A guest that answers at first and never again fails the Start, which names the key of
// its bound; nothing stays.
func TestGuestThatFallsSilent(t *testing.T) {
	w := newWorld(t)
	w.cfg.Timeouts.Boot = config.Duration(30 * time.Millisecond)
	w.guest = func(a *fakeAgent) Agent {
		return &dishonestGuest{fakeAgent: a, setup: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
	}
	w.must("create", w.create())
	if err := w.start(); err == nil || !strings.Contains(err.Error(), "timeouts.boot") {
		t.Errorf("Start = %v", err)
	}
	w.must("delete", w.delete())
	w.nothingLeft()
}
