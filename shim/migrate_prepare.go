package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/shim/journal"
)

// prepareBound is how long stopping the VMM for good may take.
const prepareBound = 10 * time.Second

// prepare stops the VMM, verifiably, takes its NICs down and writes PREPARED. From then on
// only the controller moves the VM. It answers the digest of the snapshot.
func (h *handover) prepare(ctx context.Context) (string, error) {
	vm := h.vm
	vm.mu.Lock()
	c, err := h.heldCapture("vote")
	state := vm.state
	if err == nil && state != Prepared && state != Stopped {
		err = vm.setState(Preparing)
	}
	vm.mu.Unlock()
	switch {
	case err != nil:
		return "", err
	case state == Prepared:
		return c.digest, nil
	case state == Stopped:
		return c.prepareDead()
	}
	ctx, cancel := context.WithTimeout(ctx, prepareBound)
	defer cancel()
	if err = c.complete(); err == nil {
		err = c.stopVMM(ctx)
	}
	if err == nil {
		err = vm.write((*journal.Journal).Prepare)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("vote for operation %s: %w", h.ref.GetOperation(), err), vm.vmmID().Continue())
		c.deadline.Reset(c.silenceBound()) // it may have passed unheard
		vm.leave(Preparing, Captured)
		return "", err
	}
	c.deadline.Stop()
	vm.leave(Preparing, Prepared)
	return c.digest, nil
}

// stopVMM stops the VMM's process, verifiably, and silences its NICs. A live move's source does
// so while its destination loads the state, and the vote then verifies it.
func (c *capture) stopVMM(ctx context.Context) error {
	vm := c.vm
	if err := vm.vmmID().Stop(ctx); err != nil && !errors.Is(err, os.ErrProcessDone) { // what is gone runs even less
		return err
	}
	nics := vm.nic.wiring()
	if nics == nil || c.linksDown {
		return nil
	}
	err := nics.Down(ctx)
	c.linksDown = err == nil
	return err
}

// silenceBound is how long a VM stands still for a controller that says nothing.
func (c *capture) silenceBound() time.Duration {
	vm := c.vm
	if c.inherited > 0 {
		return c.inherited
	}
	if c.send != nil {
		return time.Duration(vm.host.Config.Timeouts.Abort)
	}
	return vm.host.operationBound(c.req.GetTimeoutMs())
}

// complete refuses a capture that has made no snapshot: a vote is for one.
func (c *capture) complete() error {
	select {
	case <-c.done:
		if c.digest != "" {
			return nil
		}
	default:
	}
	return fmt.Errorf("operation %s has no snapshot of the VM: %w", c.ref.GetOperation(), errdefs.ErrFailedPrecondition)
}

// voteDead votes for a VM whose VMM died while the operation held it. It was paused
// since its state was saved, so that a complete snapshot is the VM, exactly.
func (c *capture) prepareDead() (string, error) {
	vm := c.vm
	err := c.complete()
	if err == nil {
		err = vm.journal.Update(func(j *journal.Journal) error {
			switch j.Phase {
			case journal.Sending:
				j.Phase = journal.Prepared
			case journal.Prepared, journal.Released:
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
