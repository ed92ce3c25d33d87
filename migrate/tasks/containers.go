package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// labelName is what nerdctl calls a container.
const labelName = record.LabelName

// Containers tells of all containers of all namespaces, the oldest first: their VM, their name, their image, and when
// they were made. Those of other runtimes are among them, and pods without a container of their sandbox. With an error
// it tells of those that it could read.
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
		slices.SortFunc(list, func(a, b containers.Container) int { return a.CreatedAt.Compare(b.CreatedAt) })
		for _, obj := range list {
			info := &nodev1.VMInfo{
				Vm:   &nodev1.VM{Namespace: space, Id: record.SandboxVM(obj.ID, obj.Labels, obj.Spec.GetValue())},
				Name: obj.Labels[labelName], Image: obj.Image, CreatedUnixNano: obj.CreatedAt.UnixNano(),
			}
			if record.IsSandbox(obj.Labels) {
				info.Pod, info.Image = podOf(obj), "" // what the sandbox's image has in it is not run
				info.Containers = membersOf(list, obj.ID)
			}
			all = append(all, info)
		}
		pods, err := c.podsIn(namespaces.WithNamespace(ctx, space), space, list)
		if err != nil {
			errs = append(errs, fmt.Errorf("list pods of namespace %s: %w", space, err))
		}
		all = append(all, pods...)
	}
	return all, errors.Join(errs...)
}

// podOf is the name of the pod that a sandbox is, as CRI's annotations have it; empty: they cannot be read.
func podOf(sandbox containers.Container) string {
	notes := record.Annotations(sandbox.Spec.GetValue())
	if notes[record.PodName] == "" {
		return ""
	}
	return notes[record.PodNamespace] + "/" + notes[record.PodName]
}

// membersOf counts the containers of a pod.
func membersOf(all []containers.Container, sandbox string) (n uint32) {
	for _, c := range all {
		if c.SandboxID == sandbox && record.IsMember(c.Labels) {
			n++
		}
	}
	return n
}
