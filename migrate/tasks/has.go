package tasks

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

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
