package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/proc"
)

// voteBound is how long stopping the VMM for good may take.
const voteBound = 10 * time.Second

func (vm *VM) vmmID() proc.ID { return vm.noted().vmm() }

// vmmGone reports whether the VMM is proved to be gone. Who may try again does so until then.
func (vm *VM) vmmGone() bool {
	alive, err := vm.vmmID().Alive()
	return !alive && err == nil
}

// vmmEnds waits for the end of the VMM, also where nobody can look at it for a while, and reports
// whether it came before that of ctx.
func (vm *VM) vmmEnds(ctx context.Context) bool {
	for ctx.Err() == nil {
		if err := vm.vmmID().Wait(ctx); err == nil {
			return true
		}
		retry.Sleep(ctx, mendPause)
	}
	return false
}

// held answers the hold that ref names; vm.mu is held.
func (vm *VM) held(call string, ref *machinev1.Ref) (*capture, error) {
	if vm.op.capture == nil || !sameRef(vm.op.capture.ref, ref) {
		return nil, fmt.Errorf("%s: operation %s, attempt %d, generation %d does not hold VM %s: %w",
			call, ref.GetOperation(), ref.GetAttempt(), ref.GetGeneration(), vm.id, errdefs.ErrFailedPrecondition)
	}
	return vm.op.capture, nil
}

// prepare stops the VMM, verifiably, silences its NICs and writes PREPARED. From then on
// only the controller's word moves the VM.
func (vm *VM) prepare(ctx context.Context, ref *machinev1.Ref) (string, error) {
	vm.mu.Lock()
	c, err := vm.held("vote", ref)
	state := vm.state
	if err == nil && state != Voted && state != Stopped {
		err = vm.to(Voting)
	}
	vm.mu.Unlock()
	switch {
	case err != nil:
		return "", err
	case state == Voted:
		return c.digest, nil
	case state == Stopped:
		return vm.prepareDead(c)
	}
	ctx, cancel := context.WithTimeout(ctx, voteBound)
	defer cancel()
	if err = complete(c); err == nil {
		err = vm.hush(ctx, c)
	}
	if err == nil {
		err = vm.write((*Journal).prepares)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("vote for operation %s: %w", ref.GetOperation(), err), vm.vmmID().Continue())
		c.deadline.Reset(vm.patience(c)) // it may have passed unheard
		vm.leave(Voting, Captured)
		return "", err
	}
	c.deadline.Stop()
	vm.leave(Voting, Voted)
	return c.digest, nil
}

// prepares says that the VM has voted.
func (j *Journal) prepares() { j.Phase = Prepared }

// hush stops the VMM's process, verifiably, and silences its NICs. A live move's source does
// so while its destination loads the state, and the vote then verifies it.
func (vm *VM) hush(ctx context.Context, c *capture) error {
	if err := vm.vmmID().Stop(ctx); err != nil && !errors.Is(err, os.ErrProcessDone) { // what is gone runs even less
		return err
	}
	if vm.nic.attached == nil || c.hushed {
		return nil
	}
	err := vm.nic.attached.Down(ctx)
	c.hushed = err == nil
	return err
}

// patience is how long a VM stands still for a controller that says nothing.
func (vm *VM) patience(c *capture) time.Duration {
	if c.patience > 0 {
		return c.patience
	}
	if c.send != nil {
		return time.Duration(vm.host.Config.Timeouts.Abort)
	}
	return vm.operationBound(c.req.GetTimeoutMs())
}

// complete wants the snapshot that a vote is for.
func complete(c *capture) error {
	select {
	case <-c.done:
		if c.digest != "" {
			return nil
		}
	default:
	}
	return fmt.Errorf("operation %s has no snapshot of the VM: %w", c.ref.GetOperation(), errdefs.ErrFailedPrecondition)
}

// prepareDead votes for a VM whose VMM died while the operation held it. It was paused
// since its state was saved, so that a complete snapshot is the VM, exactly.
func (vm *VM) prepareDead(c *capture) (string, error) {
	err := complete(c)
	if err == nil {
		err = vm.update(func(j *Journal) error {
			switch j.Phase {
			case Sending:
				j.Phase = Prepared
			case Prepared, Released:
			default:
				return fmt.Errorf("VM %s is %s: %w", vm.id, j.Phase, errdefs.ErrFailedPrecondition)
			}
			return nil
		})
	}
	if err != nil {
		return "", fmt.Errorf("vote for operation %s: %w", c.ref.GetOperation(), err)
	}
	c.deadline.Stop()
	return c.digest, nil
}

// release ends the VM after the commit: its state is the snapshot's now. It can be
// repeated from any point.
func (vm *VM) release(ctx context.Context, ref *machinev1.Ref, digest string, moved bool) error {
	vm.mu.Lock()
	j := vm.journal
	if j.Phase == Released && j.Operation == ref.GetOperation() {
		vm.mu.Unlock()
		return nil
	}
	c, err := vm.held("release", ref)
	switch {
	case err != nil:
	case complete(c) != nil:
		err = complete(c)
	case c.digest != digest:
		err = fmt.Errorf("release VM %s to %s: its snapshot is %s: %w", vm.id, digest, c.digest, errdefs.ErrFailedPrecondition)
	case j.Phase != Prepared:
		err = fmt.Errorf("release VM %s: it has not voted: %w", vm.id, errdefs.ErrFailedPrecondition)
	case vm.state != Stopped: // the VMM may have died after the vote
		err = vm.to(Releasing)
	}
	for _, p := range vm.execs() {
		p.left = p.left || err == nil && c.execs && p.runs()
	}
	vm.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
	defer cancel()
	err = nil
	if c.endWorker != nil { // RAM that somebody has mapped is not free, whoever may have its room
		err = c.endWorker(ctx)
	}
	if err == nil {
		err = vm.dispose(ctx, moved)
	}
	if err != nil {
		vm.leave(Releasing, Voted)
		return fmt.Errorf("release VM %s: %w", vm.id, err)
	}
	vm.end(ctx, 0, time.Now())
	return nil
}

// dispose destroys what the committed snapshot has made superfluous. Of a VM that has
// moved it leaves a silent network: its addresses are in use.
func (vm *VM) dispose(ctx context.Context, moved bool) error {
	if err := vm.machine.Kill(ctx); err != nil {
		return err
	}
	j := vm.noted()
	done := *j
	done.Phase, done.Move = Released, j.Move || moved
	if err := detach(ctx, vm.host, &done, j.Links); err != nil {
		return err
	}
	errs := []error{removeFile(j.RAM), removeTables(j)}
	for i, d := range j.Spec.Disks {
		if !d.ReadOnly {
			errs = append(errs, removeFile(j.Disks[i].Path))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return vm.write(func(j *Journal) { j.Phase, j.Move = done.Phase, done.Move })
}
