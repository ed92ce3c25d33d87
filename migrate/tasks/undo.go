package tasks

import (
	"cmp"
	"context"
	"fmt"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/engine"
)

// undoTimeout bounds the removal of what a failed Create made.
const undoTimeout = 30 * time.Second

// Undo removes what Create of this order made: the task, the network, and the container
// object if it was not there before. A task of another order is left alone. A Create of the
// order that is under way ends first.
func (c *Client) Undo(ctx context.Context, vm *nodev1.VM, order engine.Restore) error {
	return c.undo(ctx, vm, order, true)
}

// Clear is Undo of a task that has ended: one that has not may be a later one of its container,
// whose labels tell the two not apart, and stays.
func (c *Client) Clear(ctx context.Context, vm *nodev1.VM, order engine.Restore) error {
	return c.undo(ctx, vm, order, false)
}

func (c *Client) undo(ctx context.Context, vm *nodev1.VM, order engine.Restore, kill bool) error {
	c.making.stop(vm, order.Intent)
	unlock, err := c.serial.lock(ctx, vm)
	if err != nil {
		return err
	}
	defer unlock()
	return c.unmake(namespaces.WithNamespace(ctx, vm.GetNamespace()), vm, order, kill)
}

// unmake is Undo, or Clear, for who has the VM to itself.
func (c *Client) unmake(ctx context.Context, vm *nodev1.VM, order engine.Restore, kill bool) error {
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if errdefs.IsNotFound(err) {
		return c.networks.undo(ctx, vm)
	}
	if err != nil {
		return err
	}
	labels, err := container.Labels(ctx)
	if err != nil || labels[labelOrder] != orderMark(order.Intent) {
		return err
	}
	if !kill {
		if busy, err := c.Busy(ctx, vm); busy || err != nil {
			return cmp.Or(err, fmt.Errorf("the task of operation %s has not ended: %w", order.Intent.Operation,
				errdefs.ErrFailedPrecondition))
		}
	}
	if err := c.deleteTask(ctx, vm, kill); err != nil {
		return err
	}
	if err := c.networks.undo(ctx, vm); err != nil {
		return err
	}
	if labels[labelNew] == "" {
		return c.stopped(ctx, container, order.Intent.Digest, "", c.networks.path(vm))
	}
	if err := container.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// deleteTask waits for a task that is about to stop; with kill it ends one that is not. A
// CREATED task that took its SIGKILL is about to stop too, though its Kill has returned.
func (c *Client) deleteTask(ctx context.Context, vm *nodev1.VM, kill bool) error {
	task, err := c.task(ctx, vm)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	exited, err := task.Wait(ctx)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	killed := false
	if kill {
		err := task.Kill(ctx, syscall.SIGKILL)
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			return err
		}
		killed = !errdefs.IsFailedPrecondition(err)
	}
	status, serr := task.Status(ctx)
	if exited != nil && serr == nil && status.Status != containerd.Stopped &&
		(killed || status.Status != containerd.Created) {
		select {
		case <-exited:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	_, err = task.Delete(ctx)
	if errdefs.IsNotFound(err) { // an attached client was faster
		return nil
	}
	return err
}
