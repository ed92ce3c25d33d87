package tasks

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// calledBound bounds the question what a VM is called: it does not hold up a wake for long.
const calledBound = 2 * time.Second

// name is what the container of a VM that comes is called here; empty: by its id. What the record says is another
// node's word: no arrival fails by it, and none takes the name of a container that is here.
func (c *Client) name(ctx context.Context, vm *nodev1.VM) string {
	if c.Called == nil {
		return ""
	}
	bound, cancel := context.WithTimeout(ctx, calledBound)
	defer cancel()
	called, err := c.Called(bound, vm)
	if err == nil && called != "" {
		err = c.untaken(bound, vm, called)
	}
	if err != nil {
		slog.WarnContext(ctx, "the VM is called by its id on this node", "vm", vm.GetNamespace()+"/"+vm.GetId(),
			"name", called, "error", err)
		return ""
	}
	return called
}

// untaken refuses a name that another container of this node has, as its name or its id, or that is no name.
func (c *Client) untaken(ctx context.Context, vm *nodev1.VM, called string) error {
	if err := record.CheckVMName(called); err != nil {
		return err
	}
	list, err := c.containerd.ContainerService().List(namespaces.WithNamespace(ctx, vm.GetNamespace()),
		fmt.Sprintf(`labels."%s"==%s`, labelName, strconv.Quote(called)), "id=="+strconv.Quote(called))
	if err != nil {
		return fmt.Errorf("look who is called %s: %w", called, err)
	}
	for _, obj := range list {
		if obj.ID != vm.GetId() {
			return fmt.Errorf("container %s is called %s here: %w", obj.ID, called, errdefs.ErrAlreadyExists)
		}
	}
	return nil
}

// Label gives the container of a VM that has no name one, unless another container of this node has it.
func (c *Client) Label(ctx context.Context, vm *nodev1.VM, called string) error {
	if err := c.untaken(ctx, vm, called); err != nil {
		if errdefs.IsAlreadyExists(err) || errdefs.IsInvalidArgument(err) {
			return nil
		}
		return err
	}
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if err == nil {
		err = container.Update(ctx, func(_ context.Context, _ *containerd.Client, obj *containers.Container) error {
			if obj.Labels[labelName] == "" {
				label(obj, labelName, called)
			}
			return nil
		})
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("name container %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return nil
}

// rename gives a container that an earlier stay of the VM has left the name of now. nerdctl's own keep theirs: it has
// files about them.
func rename(obj *containers.Container, called string) {
	if called != "" && obj.Labels[labelNerdctl] == "" {
		label(obj, labelName, called)
	}
}
