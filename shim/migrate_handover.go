package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

func (vm *VM) vmmID() proc.ID { return vmmOf(vm.journal.Load()) }

// vmmGone reports whether the VMM is proved to be gone. Who may try again does so until then.
func (vm *VM) vmmGone() bool {
	alive, err := vm.vmmID().Alive()
	return !alive && err == nil
}

// vmmEnds waits for the end of the VMM, also while that cannot be seen, and reports whether it came before that of ctx.
func (vm *VM) vmmEnds(ctx context.Context) bool {
	for ctx.Err() == nil {
		if err := vm.vmmID().Wait(ctx); err == nil {
			return true
		}
		retry.Sleep(ctx, resumeRetry)
	}
	return false
}

// handover is one order of the controller for a VM that an operation has captured: to vote for
// the commit, to end the VM after it, or to take the VM back after it.
type handover struct {
	vm  *VM
	ref *machinev1.Ref // of the operation that has to hold the VM
}

// heldCapture answers the hold of the order's operation; vm.mu is held.
func (h *handover) heldCapture(call string) (*capture, error) {
	vm, ref := h.vm, h.ref
	if vm.op.capture == nil || !sameRef(vm.op.capture.ref, ref) {
		return nil, fmt.Errorf("%s: operation %s, attempt %d, generation %d does not hold VM %s: %w",
			call, ref.GetOperation(), ref.GetAttempt(), ref.GetGeneration(), vm.id, errdefs.ErrFailedPrecondition)
	}
	return vm.op.capture, nil
}

// release ends the VM after the commit: its state is the snapshot's now. It can be
// repeated from any point.
func (h *handover) release(ctx context.Context, digest string, moved bool) error {
	vm := h.vm
	vm.mu.Lock()
	j := vm.journal.Load()
	if j.Phase == journal.Released && j.Operation == h.ref.GetOperation() {
		vm.mu.Unlock()
		return nil
	}
	c, err := h.heldCapture("release")
	switch {
	case err != nil:
	case c.complete() != nil:
		err = c.complete()
	case c.digest != digest:
		err = fmt.Errorf("release VM %s to %s: its snapshot is %s: %w", vm.id, digest, c.digest,
			errdefs.ErrFailedPrecondition)
	case j.Phase != journal.Prepared:
		err = fmt.Errorf("release VM %s: it has not voted: %w", vm.id, errdefs.ErrFailedPrecondition)
	case vm.state != Stopped: // the VMM may have died after the vote
		err = vm.setState(Releasing)
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
	if c.endWorker != nil { // RAM that is mapped by a process is not free, whatever room was given away
		err = c.endWorker(ctx)
	}
	if err == nil {
		err = h.releaseSource(ctx, moved)
	}
	if err != nil {
		vm.leave(Releasing, Prepared)
		return fmt.Errorf("release VM %s: %w", vm.id, err)
	}
	vm.ending.end(ctx, 0, time.Now())
	return nil
}

// releaseSource destroys what the committed snapshot has made superfluous. Of a VM that has
// moved it leaves a silent network: its addresses are in use.
func (h *handover) releaseSource(ctx context.Context, moved bool) error {
	vm := h.vm
	if err := vm.machine.Kill(ctx); err != nil {
		return err
	}
	j := vm.journal.Load()
	done := *j
	done.Phase, done.Move = journal.Released, j.Move || moved
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
	return vm.write(func(j *journal.Journal) { j.Phase, j.Move = done.Phase, done.Move })
}
