package tasks

import (
	"context"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/migrate/engine"
)

// specOf is the Spec of the VM that order restores: from its source, or its snapshot.
func (c *Client) specOf(ctx context.Context, order engine.Restore) (*spec.Spec, error) {
	stream := order.Intent.Stream
	if stream == nil {
		return c.spec(ctx, order.Repository, order.Intent.Digest)
	}
	sp, err := spec.Decode(stream.GetSpec())
	if err != nil {
		return nil, fmt.Errorf("what the source has offered: %w", err)
	}
	return sp, nil
}

// Moving marks the container of a VM that a snapshot, or the node owner, owns from now on, so
// that containerd's restart monitor looks at it no more when its task ends.
func (c *Client) Moving(ctx context.Context, vm *nodev1.VM, digest, owner string) error {
	unlock, err := c.serial.lock(ctx, vm)
	if err != nil {
		return err
	}
	defer unlock()
	return c.mark(ctx, vm, digest, owner)
}

func (c *Client) mark(ctx context.Context, vm *nodev1.VM, digest, owner string) error {
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if err == nil {
		err = c.stopped(ctx, container, digest, owner, c.networks.path(vm))
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("label container %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return nil
}

// Moved cleans up after a VM that left this node: the stopped task and the network go; the
// container object stays, marked as by Moving.
func (c *Client) Moved(ctx context.Context, vm *nodev1.VM, digest, owner string) error {
	unlock, err := c.serial.lock(ctx, vm)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.mark(ctx, vm, digest, owner); err != nil {
		return err
	}
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	if err := c.deleteTask(ctx, vm, false); err != nil {
		return fmt.Errorf("delete stopped task of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return c.networks.release(ctx, vm)
}

// Gone removes the container object of a VM that was deleted, with its root file system. One
// that is not marked with the digest is somebody's by now; one of nerdctl's has files on the
// host that nerdctl alone removes, and stays.
func (c *Client) Gone(ctx context.Context, vm *nodev1.VM, digest string) error {
	unlock, err := c.serial.lock(ctx, vm)
	if err != nil {
		return err
	}
	defer unlock()
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	var labels map[string]string
	if err == nil {
		labels, err = container.Labels(ctx)
	}
	if err == nil && labels[LabelDigest] == digest && labels[labelNerdctl] == "" {
		err = container.Delete(ctx, containerd.WithSnapshotCleanup)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete container %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return nil
}

// stopped marks the container of a VM that a snapshot, or another node, owns.
func (c *Client) stopped(ctx context.Context, container containerd.Container, digest, owner, netns string) error {
	return container.Update(ctx, func(_ context.Context, _ *containerd.Client, obj *containers.Container) error {
		return stop(obj, digest, owner, netns)
	})
}
