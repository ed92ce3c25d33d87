package shim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

// resumeRetry lies between two tries at what a resume could not do at once. A variable for
// the tests.
var resumeRetry = time.Second

// expire resumes a VM whose controller has not come back in time. From the vote on it
// does nothing: then the controller alone decides.
func (c *capture) expire() {
	vm := c.vm
	if vm.life.Err() != nil { // the shim ends: what it held is its successor's
		return
	}
	vm.log.Warn("the operation's controller is silent: resume", "operation", c.ref.GetOperation())
	vm.op.aborted.add(c.ref)
	if err := c.abort(Captured); err != nil {
		vm.log.Warn("resume", "error", err)
	}
}

// abort gives the VM back to the node, from one of the states that the caller may end.
func (c *capture) abort(allowed ...State) error {
	vm := c.vm
	c.cancel()
	<-c.done // a capture under way takes itself back
	ordered := slices.Contains(allowed, Prepared)
	vm.mu.Lock()
	from := vm.state
	var err error
	switch {
	case vm.op.capture != c: // aborted before
		vm.mu.Unlock()
		return nil
	case slices.Contains(allowed, from):
		err = vm.setState(Aborting)
	case from == Stopped:
		vm.mu.Unlock()
		return c.endDead(ordered)
	case from == Aborting: // its host may lack what a resume takes
		err = fmt.Errorf("abort operation %s: VM %s is being given back, ask again: %w", c.ref.GetOperation(), vm.id,
			errdefs.ErrUnavailable)
	default:
		err = fmt.Errorf("abort operation %s: VM %s is %s: %w", c.ref.GetOperation(), vm.id, from,
			errdefs.ErrFailedPrecondition)
	}
	vm.mu.Unlock()
	if err != nil {
		return err
	}
	return c.resume(from, ordered)
}

// endDead ends the hold on a VM whose VMM died meanwhile: there is nothing to give back.
func (c *capture) endDead(ordered bool) error {
	vm := c.vm
	err := vm.journal.Update(func(j *journal.Journal) error {
		if j.Phase == journal.Released || j.Phase == journal.Prepared && !ordered {
			return fmt.Errorf("abort operation %s: VM %s is %s: %w", c.ref.GetOperation(), vm.id, j.Phase,
				errdefs.ErrFailedPrecondition)
		}
		c.endOperation(j)
		return nil
	})
	if err == nil {
		c.drop()
	}
	return err
}

// endOperation ends it under the generation of a revert, if that is what ended the operation.
func (c *capture) endOperation(j *journal.Journal) {
	j.EndOperation()
	if g := c.reverted.Load(); g != 0 {
		j.Generation = g
	}
}

// drop ends the hold.
func (c *capture) drop() {
	vm := c.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.op.capture = nil
}

// resume takes the VM from Aborting to Running. The record says OWN first: a crash in between must not leave a VM that
// has no owner. Where it cannot be written, a VM that has voted stays, and so does one whose resume was not ordered.
// Another runs on: a successor aborts the SENDING that the disk has until it has room. A VM that cannot be resumed is
// in an unknown state and ends; whatever else goes wrong is tried again while it runs.
func (c *capture) resume(from State, ordered bool) error {
	vm := c.vm
	bound := time.Duration(vm.host.Config.Timeouts.Abort)
	c.deadline.Stop()
	noted := vm.write(c.endOperation)
	if noted != nil && (from == Prepared || !ordered) {
		if from != Prepared {
			c.deadline.Reset(bound)
		}
		vm.leave(Aborting, from)
		return noted
	}
	if vm.vmmGone() { // it died in the hold: there is nothing to give back
		c.drop()
		vm.ending.endWithVMM()
		return nil
	}
	var up, err error
	if !c.req.GetPaused() {
		r := c.beginResuming()
		defer r.end()
		up, err = r.retryWakeMachine()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(vm.life), bound)
	defer cancel()
	if err != nil {
		err = fmt.Errorf("resume VM %s: %w", vm.id, err)
		c.drop() // it may have run: its snapshot gets no vote any more
		vm.ending.endUnusable(ctx)
		return err
	}
	return c.finishResume(ctx, noted, up)
}

// finishResume ends a hold whose VM runs, or is paused as before. noted and up are what went wrong
// with the journal and the links.
func (c *capture) finishResume(ctx context.Context, noted, up error) error {
	vm := c.vm
	if c.noting == nil { // else keepTable decides on the notes
		vm.tracking.stop()
	}
	met := vm.reconnect(ctx)
	if err := vm.nic.restore(ctx); err != nil {
		vm.log.Error("plug NICs in again; it is tried while the VM runs", "error", err)
	}
	vm.op.progress.clear()
	if noted != nil { // before another operation may come, whose own word must stand
		_ = vm.journal.owe("the end of an operation", c.endOperation)
	}
	vm.mu.Lock()
	vm.op.capture = nil
	next := Running
	if c.req.GetPaused() {
		next = Paused
	}
	err := vm.setState(next)
	vm.mu.Unlock()
	vm.startTraffic()
	vm.retryWhileRunning("set links up", up, vm.nic.up)
	vm.retryWhileRunning("meet guest", met, vm.reconnectAll)
	go vm.trimMemory()
	return err
}

// wakeMachine answers what of the network failed, in addition to what makes the VM run. The operation that held the VM
// may have stopped its VMM, for a vote that came or did not come.
func (vm *VM) wakeMachine(ctx context.Context) (up, err error) {
	if err := vm.vmmID().Continue(); err != nil {
		return nil, err
	}
	up = vm.nic.up(ctx)
	err = resumeVMM(ctx, vm)
	vm.clock.noteResumed()
	return up, err
}

// resumeVMM lets a VM run that was paused, and its agent's channel flow, which a capture held.
func resumeVMM(ctx context.Context, vm *VM) error {
	if err := vm.machine.Resume(ctx); err != nil {
		return err
	}
	if agent := vm.guest(); agent != nil {
		agent.Release()
	}
	return nil
}

// scarce reports whether err says of this host that it lacks descriptors or memory, and nothing of
// the VM.
func scarce(err error) bool {
	for _, lack := range []error{proc.ErrUnknown, unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// retryWhileRunning tries again what has failed with err, as a part of the VM's traffic: the next
// capture, and the end, make it superfluous.
func (vm *VM) retryWhileRunning(what string, err error, again func(context.Context) error) {
	if err == nil {
		return
	}
	vm.log.Error("resume: try again while the VM runs", "what", what, "error", err)
	vm.mu.Lock()
	defer vm.mu.Unlock()
	ctx := vm.traffic.ctx
	if ctx == nil || ctx.Err() != nil {
		return
	}
	vm.traffic.watchers.Go(func() {
		pause, last := retry.Backoff{Min: resumeRetry, Max: keepPause}, ""
		for pause.Wait(ctx); ctx.Err() == nil; pause.Wait(ctx) {
			err := again(ctx)
			if err == nil {
				vm.log.Info("resume: done", "what", what)
				return
			}
			if text := shown(err.Error()); text != last && ctx.Err() == nil {
				vm.log.Warn("resume: it failed again", "what", what, "error", text)
				last = text
			}
		}
	})
}

// reconnectAll is reconnect for a VM whose traffic flows without its init.
func (vm *VM) reconnectAll(ctx context.Context) error {
	bound, cancel := context.WithTimeout(ctx, time.Duration(vm.host.Config.Timeouts.Boot))
	defer cancel()
	if err := vm.reconnect(bound); err != nil {
		return err
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	for _, t := range vm.tasks {
		if ctx.Err() == nil && t.init.started {
			t.startTrafficOf(t.init)
		}
	}
	return nil
}
