package tasks

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/namespaces"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Orphans gives back the networks of VMs whose container object is gone: whoever deletes
// a task and its container with containerd's own tools knows nothing of a namespace that
// a wake made here. A wake makes the container object before the namespace, so nothing
// that is under way is taken for an orphan.
func (c *Client) Orphans(ctx context.Context) error { return c.networks.orphans(ctx, c.known) }

// known reports which containers there are, by namespace and id.
type known map[string]map[string]bool

func (n *networks) orphans(ctx context.Context, list func(context.Context) (known, error)) error {
	made, err := filepath.Glob(filepath.Join(n.dir, "*", "*"))
	if err != nil || len(made) == 0 {
		return err
	}
	all, err := list(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	var errs []error
	for _, path := range made {
		vm := &nodev1.VM{Namespace: filepath.Base(filepath.Dir(path)), Id: filepath.Base(path)}
		if !all[vm.GetNamespace()][vm.GetId()] {
			errs = append(errs, n.undo(ctx, vm))
		}
	}
	return errors.Join(errs...)
}

// known lists the containers of all namespaces.
func (c *Client) known(ctx context.Context) (known, error) {
	all, err := c.containerd.NamespaceService().List(ctx)
	if err != nil {
		return nil, err
	}
	list := known{}
	for _, ns := range all {
		containers, err := c.containerd.ContainerService().List(namespaces.WithNamespace(ctx, ns))
		if err != nil {
			return nil, err
		}
		list[ns] = map[string]bool{}
		for _, container := range containers {
			list[ns][container.ID] = true
		}
	}
	return list, nil
}
