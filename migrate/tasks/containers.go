package tasks

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/containerd/v2/pkg/namespaces"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// labelName is what nerdctl calls a container.
const labelName = record.LabelName

// Containers tells of all containers of all namespaces: their name, their image, and when they were made. Those of
// other runtimes are among them. With an error it tells of those that it could read.
func (c *Client) Containers(ctx context.Context) (all []*nodev1.VMInfo, err error) {
	spaces, err := c.containerd.NamespaceService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containerd's namespaces: %w", err)
	}
	var errs []error
	for _, space := range spaces {
		list, err := c.containerd.ContainerService().List(namespaces.WithNamespace(ctx, space))
		if err != nil {
			errs = append(errs, fmt.Errorf("list containers of namespace %s: %w", space, err))
		}
		for _, obj := range list {
			all = append(all, &nodev1.VMInfo{
				Vm: &nodev1.VM{Namespace: space, Id: obj.ID}, Name: obj.Labels[labelName], Image: obj.Image,
				CreatedUnixNano: obj.CreatedAt.UnixNano(),
			})
		}
	}
	return all, errors.Join(errs...)
}
