package shim

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/retry"
)

// readyEvery is how often a workload is asked whether it is ready. A variable for the tests.
var readyEvery = 500 * time.Millisecond

// prepared waits until nothing of the workload speaks against an operation: it has heard what
// it was to hear, and says that it is ready. A live move stores nothing that it could be
// asked about, and a guest that is paused answers nothing.
func (c *capture) prepared(ctx context.Context) error {
	vm := c.vm
	s := vm.spec()
	if s == nil || c.req.GetPaused() {
		return nil
	}
	probe, _ := s.Ready()
	if probe == nil && s.Notify() == nil {
		return nil
	}
	var has *capture
	err := whileBusy(ctx, func() (err error) {
		vm.mu.Lock()
		defer vm.mu.Unlock()
		has, err = c.mayHold()
		return err
	})
	if err != nil || has != nil {
		return err
	}
	vm.notices.await(ctx)
	if probe == nil || c.send != nil {
		return nil
	}
	if err := c.awaitReady(ctx); err != nil {
		return fmt.Errorf("capture VM %s: %w", vm.id, err)
	}
	return nil
}

// awaitReady waits until the VM's workload says that a snapshot may be made. No operation holds
// the VM meanwhile, so that one that never gets ready runs on as if nothing had been ordered.
// What else is in the way is for hold to say.
func (c *capture) awaitReady(ctx context.Context) error {
	vm, ref := c.vm, c.ref
	probe, within := vm.spec().Ready()
	if within == 0 {
		within = time.Duration(vm.host.Config.Timeouts.Ready)
	}
	wait, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	last := "none"
	for vm.inState(Running) && !vm.op.aborted.has(ref) {
		status, err := c.isReady(wait, probe)
		if err == nil && status != 0 {
			if last == "none" {
				vm.log.Info("an operation waits until the workload is ready", "operation", ref.GetOperation(), "status", status,
					"within", within)
			}
			last = fmt.Sprintf("status %d", status)
			retry.Sleep(wait, readyEvery)
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("wait until it is ready: %w", ctx.Err())
		case err == nil && status == 0:
			return nil
		case wait.Err() != nil: // a later order may find it ready: a caller that tries again may find it so
			return fmt.Errorf("it is not ready: %q (annotation %s) did not end with 0 within %v; its last answer: %s; look "+
				"in the VM why, or give it longer (%s, else timeouts.ready): %w",
				strings.Join(probe, " "), spec.AnnotationReady, within, last, spec.AnnotationReadyTimeout, context.DeadlineExceeded)
		case errdefs.IsUnavailable(err):
			return fmt.Errorf("ask whether it is ready: %w", err)
		case err != nil: // of its class nothing follows for the operation
			return fmt.Errorf("it is not ready: %q (annotation %s) cannot be run: %v; make the container with one that can: %w",
				strings.Join(probe, " "), spec.AnnotationReady, err, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// isReady asks once. An operation does not come into that.
func (c *capture) isReady(ctx context.Context, probe []string) (uint32, error) {
	vm := c.vm
	defer vm.lockAndCall()()
	id := "/ready#" + uuid.NewString() // containerd has no such ids, and no shim before this one has
	status, err := vm.owner.command(ctx, id, probe)
	if err == nil {
		vm.owner.forgetCommand(id)
	} else {
		vm.owner.killCommand(vm.owner.unendedCommand(id))
	}
	return status, err
}
