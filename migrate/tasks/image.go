package tasks

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// containerMetadata is where the CRI plugin keeps what it knows of a container.
const containerMetadata = "io.cri-containerd.container.metadata"

// ImageOf answers which image CRI has made a container of: the digest of its configuration. Names of images may stand
// for other ones by now, so that they are not asked.
func (c *Client) ImageOf(ctx context.Context, namespace, container string) (string, error) {
	obj, err := c.containerd.ContainerService().Get(namespaces.WithNamespace(ctx, namespace), container)
	if err != nil {
		return "", fmt.Errorf("look for container %s/%s: %w", namespace, container, err)
	}
	data := obj.Extensions[containerMetadata]
	if data == nil {
		return "", fmt.Errorf("container %s/%s is none of CRI's: %w", namespace, container, errdefs.ErrNotFound)
	}
	var m struct{ Metadata struct{ ImageRef string } }
	if err := json.Unmarshal(data.GetValue(), &m); err != nil {
		return "", fmt.Errorf("read metadata of container %s/%s: %w: %w", namespace, container, err, errdefs.ErrDataLoss)
	}
	found, err := digest.Parse(m.Metadata.ImageRef)
	if err != nil {
		return "", fmt.Errorf("read metadata of container %s/%s: its image is %q: %w: %w", namespace, container,
			m.Metadata.ImageRef, err, errdefs.ErrDataLoss)
	}
	return found.String(), nil
}
