package tasks

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// Has reports whether containerd has a container object of the VM, or a sandbox without one. An error is not "no".
func (c *Client) Has(ctx context.Context, vm *nodev1.VM) (bool, error) {
	all, err := c.containersOf(namespaces.WithNamespace(ctx, vm.GetNamespace()), vm)
	return len(all) > 0, err
}

// containersOf are the ids of the VM's containers. There is one at most, but for a pod with a name for its VM: CRI
// makes the ids of its sandboxes by chance, and keeps one that has ended next to the one that runs.
func (c *Client) containersOf(ctx context.Context, vm *nodev1.VM) (ids []string, err error) {
	_, err = c.containerd.ContainerService().Get(ctx, vm.GetId())
	switch {
	case err == nil:
		return []string{vm.GetId()}, nil
	case !errdefs.IsNotFound(err):
		return nil, fmt.Errorf("look for container %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	if ids, err = c.sandboxesOf(ctx, vm); err != nil || !record.MayBePod(vm.GetId()) {
		return ids, err
	}
	all, err := c.containerd.ContainerService().List(ctx, record.SandboxFilter)
	if err != nil {
		return nil, fmt.Errorf("look for the sandbox of pod %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	for _, obj := range all {
		if record.SandboxVM(obj.ID, obj.Labels, obj.Spec.GetValue()) == vm.GetId() {
			ids = append(ids, obj.ID)
		}
	}
	return ids, nil
}

// HasTask reports whether containerd has a task of the VM whose shim answers.
func (c *Client) HasTask(ctx context.Context, vm *nodev1.VM) (bool, error) {
	process, err := c.process(ctx, vm)
	return process != nil, err
}

// Busy reports whether there is a task that no wake may take the place of: one that has not ended.
func (c *Client) Busy(ctx context.Context, vm *nodev1.VM) (bool, error) {
	process, err := c.process(ctx, vm)
	return process != nil && process.GetStatus() != task.Status_STOPPED, err
}

// process is the task's as its shim describes it; nil: there is none. Of several, it is one that has not ended.
func (c *Client) process(ctx context.Context, vm *nodev1.VM) (found *task.Process, err error) {
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	ids := []string{vm.GetId()} // a task may be there without its container
	if record.MayBePod(vm.GetId()) {
		all, err := c.containersOf(ctx, vm)
		if err != nil {
			return nil, err
		}
		ids = append(ids, all...)
	}
	for _, id := range slices.Compact(ids) {
		resp, err := c.containerd.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
		if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for task %s/%s: %w", vm.GetNamespace(), id, err)
		}
		if found = resp.GetProcess(); found.GetStatus() != task.Status_STOPPED {
			break
		}
	}
	return found, nil
}
