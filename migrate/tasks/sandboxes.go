package tasks

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// shimSandboxes lists the sandboxes that have no container, because a shim made them by its sandbox API.
func (c *Client) shimSandboxes(ctx context.Context) ([]sandbox.Sandbox, error) {
	all, err := c.containerd.SandboxStore().List(ctx)
	if errdefs.IsNotImplemented(err) { // such a containerd makes none
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	made := all[:0]
	for _, s := range all {
		if s.Sandboxer == record.ShimSandboxer {
			made = append(made, s)
		}
	}
	return made, nil
}

// sandboxesOf are the ids of those of the VM.
func (c *Client) sandboxesOf(ctx context.Context, vm *nodev1.VM) (ids []string, err error) {
	all, err := c.shimSandboxes(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for sandbox of %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	for _, s := range all {
		id, _, err := record.SandboxPod(s.ID, s.Extensions)
		if err != nil {
			return nil, fmt.Errorf("look for sandbox of %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
		}
		if id == vm.GetId() {
			ids = append(ids, s.ID)
		}
	}
	return ids, nil
}

// podsIn tells of the pods of such sandboxes. list are the containers of the namespace.
func (c *Client) podsIn(ctx context.Context, space string, list []containers.Container) ([]*nodev1.VMInfo, error) {
	sandboxes, err := c.shimSandboxes(ctx)
	var all []*nodev1.VMInfo
	for _, s := range sandboxes {
		id, pod, failed := record.SandboxPod(s.ID, s.Extensions)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		all = append(all, &nodev1.VMInfo{Vm: &nodev1.VM{Namespace: space, Id: id}, Pod: pod,
			Containers: membersOf(list, s.ID), CreatedUnixNano: s.CreatedAt.UnixNano()})
	}
	return all, err
}
