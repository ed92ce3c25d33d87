package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/vmm"
)

// adoptedPatience is how long a VM whose VMM gets to no resume stands still under a successor: no task is there by
// which it could be killed. A variable for the tests.
var adoptedPatience = 10 * time.Minute

// resuming is the end of a hold, from the first try to let the VM run on until it does, or has ended.
type resuming struct {
	vm     *VM
	life   context.Context // until a kill
	giveUp context.CancelFunc
	// Its time is over when a kill of one container ends the whole VM for it.
	late  context.Context
	early context.CancelFunc
	over  chan struct{}
}

func (c *capture) beginResuming() *resuming {
	vm := c.vm
	r := &resuming{vm: vm, over: make(chan struct{})}
	r.life, r.giveUp = context.WithCancel(context.WithoutCancel(vm.life))
	r.late, r.early = context.WithTimeout(r.life, time.Duration(vm.host.Config.Timeouts.Abort))
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.op.resuming = r
	return r
}

func (r *resuming) end() {
	r.vm.mu.Lock()
	r.vm.op.resuming = nil
	r.vm.mu.Unlock()
	close(r.over)
	r.early()
	r.giveUp()
}

// untold reports whether err says that no vCPU was told to run, of a VMM that lives and can be reached. The VM stands
// still as before, and another try cannot run it twice.
func untold(vm *VM, err error) bool {
	return errors.Is(err, vmm.ErrNotResumed) && !errors.Is(err, vmm.ErrUnreachable) && !vm.vmmGone()
}

// retryWakeMachine is wakeMachine that is tried again for as long as the host lacks what it takes, or the VMM does not
// get to it. The VM has not run, and that it cannot is not known. Its end, or a kill, ends that.
func (r *resuming) retryWakeMachine() (up, err error) {
	vm, begun := r.vm, time.Now()
	for {
		ctx, cancel := context.WithTimeout(r.life, time.Duration(vm.host.Config.Timeouts.Abort))
		up, err = vm.wakeMachine(ctx)
		cancel()
		patient := !vm.origin.adopted || time.Since(begun) < adoptedPatience
		again := (scarce(err) || untold(vm, err) && patient) && vm.life.Err() == nil
		vm.mu.Lock()
		again = again && vm.state == Aborting && r.life.Err() == nil
		vm.mu.Unlock()
		if r.life.Err() != nil {
			err = errors.Join(err, fmt.Errorf("VM %s is killed: %w", vm.id, errdefs.ErrAborted))
		}
		if !again {
			return up, err
		}
		vm.log.Warn("resume: the host lacks something, or the VMM is slow; it is tried again", "error", err)
		retry.Sleep(r.life, resumeRetry)
	}
}

// killResuming has a SIGKILL end a VM that is to run on and does not, and answers the wait for the end of p. A
// container of a pod is not all of the VM: its kill waits until a try has had its time, and is asked for again if the
// VM runs. It answers nil if no VM is resumed so, or the signal is another. vm.mu is held.
func killResuming(t *Task, p *process, signal uint32) func(context.Context) (again bool, err error) {
	r := t.vm.op.resuming
	if p.id != "" || p.exited || signal != sigkill || r == nil {
		return nil
	}
	if t == t.vm.owner {
		r.giveUp()
	}
	return func(ctx context.Context) (bool, error) {
		late := r.late.Done()
		for {
			select {
			case <-p.done:
				return false, nil
			case <-r.over:
				return true, nil
			case <-late:
				r.giveUp()
				late = nil
			case <-ctx.Done():
				return false, ctx.Err()
			}
		}
	}
}
