package client

import (
	"context"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// Rename gives a VM of this node another name, which goes with it when it sleeps or moves. Its id stays. One that
// sleeps, is about to, or has moved to another node is refused.
func (c *Client) Rename(ctx context.Context, vm *nodev1.VM, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	ctx = within(ctx, vm)
	if err := c.away(ctx, vm); err != nil {
		return err
	}
	container, err := c.loaded(ctx, vm)
	if err != nil {
		return err
	}
	labels, err := container.Labels(ctx)
	if err != nil {
		return c.containerdError("read the labels of VM "+c.name(vm), err)
	}
	if labels[LabelNerdctl] != "" {
		return fmt.Errorf("VM %s was made by nerdctl, which keeps its name in files of its own. Rename it there: "+
			"nerdctl rename %s %s: %w", vm.GetId(), vm.GetId(), name, errdefs.ErrFailedPrecondition)
	}
	if err := c.untaken(ctx, &nodev1.VM{Namespace: vm.GetNamespace(), Id: name}, vm.GetId()); err != nil {
		return err
	}
	if err := c.tellName(ctx, vm, name); err != nil {
		return err
	}
	err = container.Update(ctx, func(_ context.Context, _ *containerd.Client, obj *containers.Container) error {
		if obj.Labels == nil {
			obj.Labels = map[string]string{}
		}
		obj.Labels[LabelName] = name
		return nil
	})
	if err != nil {
		return c.containerdError("rename VM "+c.name(vm), err)
	}
	return nil
}

// tellName has the record know the name, before the container has it: an operation that has begun keeps the old one. If
// the container cannot be written after that, godwitd gives the record the container's name again.
func (c *Client) tellName(ctx context.Context, vm *nodev1.VM, name string) error {
	n, err := c.Node(ctx)
	if err != nil {
		return nil //nolint:nilerr // a node without godwitd has no records
	}
	rec, err := n.Recorded(ctx, &nodev1.GetRequest{Vm: vm})
	if err = record.FromWire(err); errdefs.IsNotFound(err) {
		return nil // it has never run, or keeps no record
	}
	var info *nodev1.InfoResponse
	if err == nil {
		info, err = n.Info(ctx, &nodev1.InfoRequest{})
	}
	if err == nil {
		_, err = c.connected().records.Name(ctx, &nodev1.NameRequest{Vm: vm, Uid: rec.GetUid(), Node: info.GetNode(),
			Name: name})
	}
	if err = record.FromWire(err); errdefs.IsNotImplemented(err) {
		return nil // a controller of the release before: the name stays on this node
	}
	if err != nil {
		return fmt.Errorf("rename VM %s: %w", vm.GetId(), err)
	}
	return nil
}
