package client

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// RemoveOptions say what may go with a VM.
type RemoveOptions struct {
	Force         bool   // end it if it runs; give up the state of one that sleeps
	KeepSnapshots bool   // leave them in the registry
	LostNode      string // with Force, on the controller: the node that has it is gone for good
}

// Remove ends a VM: its record, its snapshots, and the container and disk that this package has made for it. The
// container of another program stays, and the warning says so. One that runs, or sleeps, is refused without Force.
func (c *Client) Remove(ctx context.Context, vm *nodev1.VM, o RemoveOptions) (warning string, err error) {
	node, err := c.Node(ctx)
	if err != nil {
		return "", err
	}
	ctx = within(ctx, vm)
	if err := c.refusePod(ctx, vm, podRm); err != nil {
		return "", err
	}
	container, stays, err := c.removable(ctx, vm)
	if err != nil {
		return "", err
	}
	ended := false
	if container != nil {
		if ended, err = c.end(ctx, vm, container, o); err != nil {
			return "", err
		}
	}
	resp, err := node.Forget(ctx, &nodev1.ForgetRequest{Vm: vm, Force: o.Force, KeepSnapshots: o.KeepSnapshots,
		LostNode: o.LostNode})
	if err = record.FromWire(err); err != nil && (!errdefs.IsNotFound(err) || container == nil) {
		return "", c.remains(vm, "record", ended, err)
	}
	warning = strings.TrimPrefix(resp.GetWarning()+"; "+stays, "; ")
	if container == nil {
		return strings.TrimSuffix(warning, "; "), nil
	}
	if err := container.Delete(ctx, containerd.WithSnapshotCleanup); err != nil && !errdefs.IsNotFound(err) {
		return "", c.remains(vm, "container", ended,
			fmt.Errorf("remove the container of VM %s: %w", c.name(vm), unwrapped(err)))
	}
	return strings.TrimSuffix(warning, "; "), nil
}

// removable is the container of a VM that this package has made; nil: there is none here. stays says what becomes of
// another program's.
func (c *Client) removable(ctx context.Context, vm *nodev1.VM) (_ containerd.Container, stays string, err error) {
	if _, err := c.containerdSocket(); errdefs.IsFailedPrecondition(err) {
		return nil, "", nil // containerd of another node
	}
	ctr, err := c.Containerd()
	if err != nil {
		return nil, "", err
	}
	container, err := ctr.LoadContainer(ctx, vm.GetId())
	if errdefs.IsNotFound(err) {
		return nil, "", nil
	}
	var labels map[string]string
	if err == nil {
		labels, err = container.Labels(ctx)
	}
	switch {
	case err != nil:
		return nil, "", c.containerdError("look for the container of VM "+c.name(vm), err)
	case labels[LabelMade] != "", labels[labelManaged] != "":
		return container, "", nil
	case labels[LabelNerdctl] != "":
		return nil, "its container is nerdctl's and stays: nerdctl rm " + vm.GetId(), nil
	}
	return nil, "its container was not made by godwit and stays: ctr containers rm " + vm.GetId(), nil
}

// remains says what is left of a VM that has ended already.
func (c *Client) remains(vm *nodev1.VM, what string, ended bool, err error) error {
	if !ended {
		return err
	}
	way := "To go on: godwit rm --force %s."
	if errdefs.IsPermissionDenied(err) { // it is not this node's to order
		way = "To go on, on the controller: godwit rm --force %s."
	}
	return &EndedError{What: fmt.Sprintf("%s has ended. Its %s is still there.", c.name(vm), what),
		Remedy: fmt.Sprintf(way, c.name(vm)), Err: err}
}

// end deletes the task of a VM. One that runs is killed with force only, and if its record may go: what was killed
// cannot be had back.
func (c *Client) end(ctx context.Context, vm *nodev1.VM, container containerd.Container,
	o RemoveOptions) (ended bool, err error) {
	task, status, err := c.taskOf(ctx, vm, container)
	if task == nil || err != nil {
		return false, err
	}
	if status != containerd.Stopped {
		if !o.Force {
			return false, fmt.Errorf("VM %s is %s. To end it: godwit stop %s. To end and remove it: godwit rm --force %s: %w",
				c.name(vm), status, c.name(vm), c.name(vm), errdefs.ErrFailedPrecondition)
		}
		if o.LostNode != "" {
			return false, fmt.Errorf("VM %s runs on this node: leave --lost-node away: %w", c.name(vm),
				errdefs.ErrFailedPrecondition)
		}
		if err := c.mayEnd(ctx, vm, removing); err != nil {
			return false, err
		}
		exit, err := task.Wait(ctx)
		if err != nil {
			return false, fmt.Errorf("stop VM %s: %w", c.name(vm), unwrapped(err))
		}
		if err := end(ctx, c.name(vm), task, exit, syscall.SIGKILL, killTimeout); err != nil {
			return false, err
		}
		ended = true
	}
	if _, err := task.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
		return ended, c.remains(vm, "task", ended, fmt.Errorf("delete the task of VM %s: %w", c.name(vm), unwrapped(err)))
	}
	return ended, nil
}

// Ports lists the ports of a VM that the host publishes.
func (c *Client) Ports(ctx context.Context, vm *nodev1.VM) ([]Port, error) {
	ctx = within(ctx, vm)
	container, err := c.loaded(ctx, vm)
	if err != nil {
		return nil, err
	}
	labels, err := container.Labels(ctx)
	if err != nil {
		return nil, c.containerdError("read the labels of VM "+c.name(vm), err)
	}
	return portsOf(labels)
}
