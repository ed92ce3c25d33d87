package tasks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/namespaces"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Orphans gives back the networks of VMs whose container object is gone: whoever deletes
// a task and its container with containerd's own tools knows nothing of a namespace that
// a wake made here. A wake makes the container object before the namespace, so nothing
// that is under way is taken for an orphan.
func (c *Client) Orphans(ctx context.Context) error {
	dir := filepath.Dir(c.netnsPath(&nodev1.VM{}))
	made, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || len(made) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	known, err := c.known(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	var errs []error
	for _, entry := range made {
		if !known[entry.Name()] {
			errs = append(errs, c.giveBack(ctx, entry.Name(), filepath.Join(dir, entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// known answers the CNI ids of all containers of all namespaces.
func (c *Client) known(ctx context.Context) (map[string]bool, error) {
	all, err := c.containerd.NamespaceService().List(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, ns := range all {
		containers, err := c.containerd.ContainerService().List(namespaces.WithNamespace(ctx, ns))
		if err != nil {
			return nil, err
		}
		for _, container := range containers {
			known[cniID(&nodev1.VM{Namespace: ns, Id: container.ID})] = true
		}
	}
	return known, nil
}
