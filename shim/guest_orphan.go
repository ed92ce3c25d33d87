package shim

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// A Start that its caller gives up may be on its way to the guest, or under way there: a guest that stands still runs
// the process when it goes on, and the shim would not know of it. So the shim has the guest end it for good, however
// long that takes. Until then no operation gets the VM: such a process would be in its snapshot, or go along.

// lateTries is how often a guest of an earlier build says that it has no such process before it
// is believed that none comes. It may be about to start one.
const lateTries = 25

// longestDenial lies between two tries of a guest that answers with errors, at most.
const longestDenial = 5 * time.Second

// mayHaveStarted reports whether a Start that failed with err may be carried out all the same: its
// caller has left, or the answer did not come through.
func mayHaveStarted(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errdefs.IsUnavailable(err) || errdefs.IsDataLoss(err) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// endOrphanLater ends p, however long that takes while the VM lives. p is among the orphans already.
func (t *Task) endOrphanLater(p *process) {
	vm := t.vm
	if t.endOrphan(vm.life, p) {
		vm.log.Info("an exec whose start was given up is ended", "exec", p.id)
	}
	t.orphanEnded(p)
}

// orphanEnded is dropOrphan for a caller that does not hold the VM's lock.
func (t *Task) orphanEnded(p *process) {
	vm := t.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	t.dropOrphan(p)
}

// endOrphan ends a process that the guest may have started, or is about to start, for a caller
// who got no answer. It reports whether the guest has said that it is gone and stays so.
func (t *Task) endOrphan(ctx context.Context, p *process) bool {
	vm := t.vm
	agent, unknown, pause := vm.guest(), 0, retryWait
	for {
		_, err := agent.Kill(ctx, &agentv1.KillRequest{Id: p.guest, Signal: sigkill, Never: true})
		switch {
		case err == nil:
			t.forgetKilled(ctx, p)
			return true
		case errdefs.IsNotFound(err): // an earlier build; it has ended, or was never there, or comes
			if _, err := agent.Remove(ctx, &agentv1.RemoveRequest{Id: p.guest}); err == nil {
				return true
			}
			if unknown++; unknown > lateTries {
				return true
			}
		default:
			vm.log.Debug("end an exec whose start was given up", "exec", p.id, "error", err)
			pause = min(2*pause, longestDenial)
		}
		select {
		case <-ctx.Done():
			return false
		case <-t.initDone():
			return false
		case <-time.After(pause):
		}
	}
}

// forgetKilled has the guest forget an exec that was killed. One that does not die is killed all the
// same.
func (t *Task) forgetKilled(ctx context.Context, p *process) {
	vm := t.vm
	ctx, cancel := context.WithTimeout(ctx, guestBound)
	defer cancel()
	if _, err := vm.guest().Wait(ctx, &agentv1.WaitRequest{Id: p.guest}); err == nil {
		t.forgetExec(ctx, p)
	}
}
