package tasks

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// Runtime answers containerd's version and that of the shim which it finds under the
// configured runtime's name: it runs the shim's -info for that.
func (c *Client) Runtime(ctx context.Context) (string, error) {
	v, err := c.containerd.Version(ctx)
	if err != nil {
		return "", fmt.Errorf("ask containerd at %s (containerd.address): %w", c.config.Containerd.Address, err)
	}
	runtime := c.config.Containerd.Runtime
	info, err := c.containerd.RuntimeInfo(namespaces.WithNamespace(ctx, "default"), runtime, nil)
	if err != nil {
		return "", fmt.Errorf("containerd %s has no runtime %s (containerd.runtime): %w", v.Version, runtime, err)
	}
	return fmt.Sprintf("version %s, runtime %s %s", v.Version, info.Name, info.Version.Version), nil
}
