package client

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// sandboxes lists the VMs of pods whose sandbox a shim made by its sandbox API. containerd has no container of such
// a sandbox, and no task.
func (c *Client) sandboxes(ctx context.Context, namespace string) ([]*Container, error) {
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(within(ctx, &nodev1.VM{Namespace: namespace}), lookTimeout)
	defer cancel()
	list, err := ctr.SandboxStore().List(ctx)
	switch {
	case errdefs.IsNotImplemented(err): // such a containerd makes none
		return nil, nil
	case err != nil:
		return nil, c.containerdError("list sandboxes", err)
	}
	var all []*Container
	for _, s := range list {
		if s.Sandboxer != record.ShimSandboxer || !c.own(s.Runtime.Name) {
			continue
		}
		id, _, err := record.SandboxPod(s.ID, s.Extensions)
		if err != nil {
			return nil, err
		}
		all = append(all, &Container{VM: &nodev1.VM{Namespace: namespace, Id: id}, Runtime: s.Runtime.Name, task: s.ID,
			own: true})
	}
	return all, nil
}

// sandbox is that of a VM; nil: it has none of that kind.
func (c *Client) sandbox(ctx context.Context, vm *nodev1.VM) (*Container, error) {
	all, err := c.sandboxes(ctx, vm.GetNamespace())
	if err != nil {
		return nil, err
	}
	for _, f := range all {
		if f.VM.GetId() != vm.GetId() {
			continue
		}
		if status, err := c.sandboxRuns(ctx, f); err != nil || status != nil {
			return f, err
		}
	}
	return nil, nil
}

// sandboxRuns is what the shim says of a sandbox that runs; nil: it does not.
func (c *Client) sandboxRuns(ctx context.Context, f *Container) (*sandbox.ControllerStatus, error) {
	controller, err := c.controller()
	if err != nil {
		return nil, err
	}
	status, err := controller.Status(within(ctx, f.VM), f.task, false)
	switch {
	case errdefs.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, c.containerdError("ask for the status of sandbox "+f.task, err)
	case status.State != "SANDBOX_READY":
		return nil, nil
	}
	return &status, nil
}

func (c *Client) controller() (sandbox.Controller, error) {
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	return ctr.SandboxController(record.ShimSandboxer), nil
}

// sandboxStats takes the figures of a pod that runs on this node; false: there is no such sandbox of it.
func (c *Client) sandboxStats(ctx context.Context, vm *nodev1.VM, s *Stats) (found bool, err error) {
	f, err := c.sandbox(ctx, vm)
	if f == nil || err != nil {
		return false, err
	}
	controller, err := c.controller()
	if err != nil {
		return false, err
	}
	metric, err := controller.Metrics(within(ctx, vm), f.task)
	if err != nil {
		return true, fmt.Errorf("ask for the figures of VM %s: %w", c.name(vm), err)
	}
	if status, err := c.sandboxRuns(ctx, f); err == nil && status != nil {
		s.network(status.Pid)
	}
	return true, s.read(metric)
}

// beginning are those whose own id, which CRI shows, begins with ref's, or whose VM is ref.
func beginning(ref *nodev1.VM, all []*Container) (some []*Container) {
	for _, f := range all {
		if strings.HasPrefix(f.task, ref.GetId()) || f.VM.GetId() == ref.GetId() {
			some = append(some, f)
		}
	}
	return some
}
