package client

import (
	"context"
	"fmt"
	"slices"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// Task is containerd's view of a VM of this node: its container, and the task that runs it.
type Task struct {
	VM        *nodev1.VM
	Container containerd.Container
	Task      containerd.Task
}

// within is a context for calls of containerd about the VM.
func within(ctx context.Context, vm *nodev1.VM) context.Context {
	return namespaces.WithNamespace(ctx, vm.GetNamespace())
}

// Task finds the task of a VM that this node has. FailedPrecondition: the VM sleeps, has stopped, or runs on
// another node; the text says which, and what to do.
func (c *Client) Task(ctx context.Context, vm *nodev1.VM) (*Task, error) {
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	ctx = within(ctx, vm)
	container, err := ctr.LoadContainer(ctx, vm.GetId())
	if err != nil {
		return nil, c.absent(ctx, vm, err)
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		return nil, c.absent(ctx, vm, err)
	}
	status, err := task.Status(ctx)
	if err != nil {
		return nil, c.absent(ctx, vm, err)
	}
	if s := status.Status; s == containerd.Stopped || s == containerd.Created {
		return nil, c.absent(ctx, vm, fmt.Errorf("the task is %s: %w", s, errdefs.ErrNotFound))
	}
	return &Task{VM: vm, Container: container, Task: task}, nil
}

// absent says why this node has no task of the VM that runs. Only the answer that there is none counts as that.
func (c *Client) absent(ctx context.Context, vm *nodev1.VM, err error) error {
	if !errdefs.IsNotFound(err) {
		return fmt.Errorf("ask containerd for VM %s: %w", key(vm), unwrapped(err))
	}
	status, owner, found := c.whereabouts(ctx, vm)
	name, here := vm.GetId(), ""
	if node, err := c.self(); err == nil {
		here = node
	}
	switch {
	case !found:
		return fmt.Errorf("%s does not run on this node. To see where it is: godwit ps: %w", name,
			errdefs.ErrFailedPrecondition)
	case owner.GetDigest() != "" || status == "hibernated":
		return fmt.Errorf("%s sleeps. To wake it: godwit wake %s: %w", name, name, errdefs.ErrFailedPrecondition)
	case owner.GetNode() != "" && here != "" && owner.GetNode() != here:
		return fmt.Errorf("%s runs on node %s. Run the command there, or move it here: godwit migrate %s --to %s: %w",
			name, owner.GetNode(), name, here, errdefs.ErrFailedPrecondition)
	case slices.Contains([]string{"hibernating", "waking", "migrating"}, status):
		return fmt.Errorf("%s is %s. Run the command again when that has ended: %w", name, status,
			errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("%s does not run. To see its state: godwit ps: %w", name, errdefs.ErrFailedPrecondition)
}

// whereabouts is what the daemon knows of the VM. A daemon that does not answer has not found it.
func (c *Client) whereabouts(ctx context.Context, vm *nodev1.VM) (status string, owner *nodev1.Owner, found bool) {
	info, _, err := c.listed(ctx, vm)
	return info.GetStatus(), info.GetOwner(), info != nil && err == nil
}

// listed finds the VM in godwitd's list of the cluster; nil: it is not in the list. A warning says why the list is
// not whole.
func (c *Client) listed(ctx context.Context, vm *nodev1.VM) (info *nodev1.VMInfo, warning string, err error) {
	node, err := c.Node(ctx)
	if err != nil {
		return nil, "", err
	}
	resp, err := node.VMs(ctx, &nodev1.VMsRequest{Namespace: vm.GetNamespace()})
	if err != nil {
		return nil, "", record.FromWire(err)
	}
	for _, info := range resp.GetVms() {
		if key(info.GetVm()) == key(vm) {
			return info, resp.GetWarning(), nil
		}
	}
	return nil, resp.GetWarning(), nil
}

// self is the name of this node.
func (c *Client) self() (string, error) {
	cfg, err := c.load()
	if err != nil {
		return "", err
	}
	return cfg.Node, nil
}

// gone says what has become of a VM whose process ended without a word; nil: it runs as before.
func (c *Client) gone(ctx context.Context, vm *nodev1.VM) error {
	_, err := c.Task(ctx, vm)
	if err == nil {
		return nil
	}
	text := strings.TrimSuffix(err.Error(), ": "+errdefs.ErrFailedPrecondition.Error())
	return fmt.Errorf("the VM went away meanwhile. %s: %w", text, errdefs.ErrAborted)
}
