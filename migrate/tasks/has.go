package tasks

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Has reports whether containerd has a container object of the VM. An error is not "no".
func (c *Client) Has(ctx context.Context, vm *nodev1.VM) (bool, error) {
	_, err := c.containerd.LoadContainer(namespaces.WithNamespace(ctx, vm.GetNamespace()), vm.GetId())
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for container %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return true, nil
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

// process is the task's as its shim describes it; nil: there is none.
func (c *Client) process(ctx context.Context, vm *nodev1.VM) (*task.Process, error) {
	resp, err := c.containerd.TaskService().Get(namespaces.WithNamespace(ctx, vm.GetNamespace()),
		&tasks.GetRequest{ContainerID: vm.GetId()})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for task %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return resp.GetProcess(), nil
}
