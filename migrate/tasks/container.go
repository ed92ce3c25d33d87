package tasks

import (
	"context"
	"fmt"

	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
)

// optionsURL is the type under which a runtime's own config file is named.
const optionsURL = "godwit.dev/config"

// container loads the container object of the VM, or makes one from its Spec: no image,
// no snapshotter, since the disks come out of the snapshot. Either way its runtime spec
// names the namespace that was made for it.
func (c *Client) container(ctx context.Context, vm *nodev1.VM, sp *spec.Spec, netns string, intent record.Intent) (containerd.Container, error) {
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if err == nil {
		return container, c.adapt(ctx, container, netns, intent)
	}
	if !errdefs.IsNotFound(err) {
		return nil, err
	}
	runtimeSpec, err := runtimeSpec(sp, netns)
	if err != nil {
		return nil, err
	}
	options := &runtimeoptions.Options{TypeUrl: optionsURL, ConfigPath: c.configPath}
	return c.containerd.NewContainer(ctx, vm.GetId(),
		containerd.WithSpec(runtimeSpec),
		containerd.WithRuntime(c.config.Containerd.Runtime, options),
		containerd.WithContainerLabels(map[string]string{LabelManaged: "true", labelNew: "true", labelOrder: orderMark(intent)}),
	)
}

// adapt readies a container object that stayed behind for its VM's return.
func (c *Client) adapt(ctx context.Context, container containerd.Container, netns string, intent record.Intent) error {
	return container.Update(ctx, func(ctx context.Context, _ *containerd.Client, obj *containers.Container) error {
		var s specs.Spec
		if err := typeurl.UnmarshalTo(obj.Spec, &s); err != nil {
			return fmt.Errorf("runtime spec of container %s: %w", obj.ID, err)
		}
		setNetNS(&s, netns)
		any, err := typeurl.MarshalAny(&s)
		if err != nil {
			return err
		}
		obj.Spec = any
		for _, label := range []string{LabelDigest, labelStopped, labelNew} {
			delete(obj.Labels, label)
		}
		if obj.Labels == nil {
			obj.Labels = map[string]string{}
		}
		obj.Labels[labelOrder] = orderMark(intent)
		return nil
	})
}

// runtimeSpec rebuilds the OCI spec of the container from the VM's Spec.
func runtimeSpec(sp *spec.Spec, netns string) (*oci.Spec, error) {
	if sp.Container == nil || sp.Container.OCI == nil {
		return nil, fmt.Errorf("VM %s/%s is a VM disk: its wake through containerd: %w", sp.Namespace, sp.ID, errdefs.ErrNotImplemented)
	}
	s := sp.Clone().Container.OCI
	setNetNS(s, netns)
	return s, nil
}

// setNetNS puts the VM's network namespace in: the one at path, or a new one.
func setNetNS(s *specs.Spec, path string) {
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	for i := range s.Linux.Namespaces {
		if s.Linux.Namespaces[i].Type == specs.NetworkNamespace {
			s.Linux.Namespaces[i].Path = path
			return
		}
	}
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: path})
}
