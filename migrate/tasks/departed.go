package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

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

// MarkDeparted marks the container of a VM that a snapshot, or the node owner, owns from now on. containerd's
// restart monitor then looks at it no more when its task ends. One that is younger than the VM's task was made
// anew, of that name: somebody's, and never marked.
func (c *Client) MarkDeparted(ctx context.Context, vm *nodev1.VM, created int64, digest, owner string) error {
	unlock, err := c.serial.lock(ctx, vm)
	if err != nil {
		return err
	}
	defer unlock()
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if err == nil {
		err = container.Update(ctx, func(_ context.Context, _ *containerd.Client, obj *containers.Container) error {
			if created != 0 && obj.CreatedAt.UnixNano() > created {
				return errRecreated
			}
			return stop(obj, digest, owner, c.networks.path(vm))
		})
	}
	switch {
	case errors.Is(err, errRecreated):
		slog.WarnContext(ctx, "container is younger than the task of the VM that leaves, and stays as it is", "namespace",
			vm.GetNamespace(), "vm", vm.GetId())
	case err != nil && !errdefs.IsNotFound(err):
		return fmt.Errorf("label container %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return nil
}

// errRecreated says that a container was made anew: it is not the one of the VM that left.
var errRecreated = errors.New("made anew")

// CleanDeparted cleans up after a VM that left this node: the stopped task and the network go; the container object
// stays, as MarkDeparted has marked it. Of a container that was made anew only that goes which godwitd itself has
// made for the VM: task and lease are somebody's.
func (c *Client) CleanDeparted(ctx context.Context, vm *nodev1.VM, digest, owner string) error {
	unlock, err := c.serial.lock(ctx, vm)
	if err != nil {
		return err
	}
	defer unlock()
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	_, labels, err := c.marked(ctx, vm, digest, owner)
	switch {
	case errors.Is(err, errRecreated) && labels[labelOrder] != "": // a wake has it
		return nil
	case errors.Is(err, errRecreated):
		return c.networks.undo(ctx, vm)
	case errdefs.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("look for container %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	default:
		if err := c.deleteTask(ctx, vm, false); err != nil {
			return fmt.Errorf("delete stopped task of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
		}
	}
	return c.networks.release(ctx, vm)
}

// RemoveDeparted removes the container object of a VM that was deleted, with its root file system. One that
// MarkDeparted has not marked with the digest is somebody's by now, and stays. One of nerdctl's has files on the
// host that nerdctl alone removes, and stays too.
func (c *Client) RemoveDeparted(ctx context.Context, vm *nodev1.VM, digest string) error {
	unlock, err := c.serial.lock(ctx, vm)
	if err != nil {
		return err
	}
	defer unlock()
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	container, labels, err := c.marked(ctx, vm, digest, "")
	if err == nil && labels[labelNerdctl] == "" {
		err = container.Delete(ctx, containerd.WithSnapshotCleanup)
	}
	if err != nil && !errdefs.IsNotFound(err) && !errors.Is(err, errRecreated) {
		return fmt.Errorf("delete container %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return nil
}

// marked is the container of a VM that left, as MarkDeparted has marked it; errRecreated: another one. Its
// labels come with either.
func (c *Client) marked(ctx context.Context, vm *nodev1.VM, digest, owner string) (containerd.Container,
	map[string]string, error) {
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if err != nil {
		return nil, nil, err
	}
	info, err := container.Info(ctx, containerd.WithoutRefreshedMetadata)
	if err != nil {
		return nil, nil, err
	}
	// An owner without a node, or without a digest, leaves no label of that.
	if l := info.Labels; l[labelStopped] == "" || l[LabelDigest] != digest || l[LabelNode] != owner {
		return nil, l, errRecreated
	}
	return container, info.Labels, nil
}

// stopped marks the container of a VM that a snapshot, or another node, owns.
func (c *Client) stopped(ctx context.Context, container containerd.Container, digest, owner, netns string) error {
	return container.Update(ctx, func(_ context.Context, _ *containerd.Client, obj *containers.Container) error {
		return stop(obj, digest, owner, netns)
	})
}
