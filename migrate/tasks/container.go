package tasks

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

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
func (c *Client) container(ctx context.Context, vm *nodev1.VM, sp *spec.Spec, netns string,
	intent record.Intent) (containerd.Container, error) {
	called := c.name(ctx, vm)
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if err == nil {
		return container, c.adapt(ctx, vm, container, netns, called, intent)
	}
	if !errdefs.IsNotFound(err) {
		return nil, err
	}
	own, err := c.newIdentity(ctx, vm)
	if err != nil {
		return nil, err
	}
	runtimeSpec, err := runtimeSpec(sp, netns)
	if err != nil {
		return nil, err
	}
	identify(runtimeSpec, own)
	options := &runtimeoptions.Options{TypeUrl: optionsURL, ConfigPath: c.configPath}
	labels := map[string]string{LabelManaged: "true", labelNew: "true", labelOrder: orderMark(intent)}
	if called != "" {
		labels[labelName] = called
	}
	return c.containerd.NewContainer(ctx, vm.GetId(),
		containerd.WithSpec(runtimeSpec),
		containerd.WithRuntime(c.config.Containerd.Runtime, options),
		containerd.WithContainerLabels(labels),
	)
}

// adapt readies a container object that was kept for its VM's return. One that an older build has made without a root
// file system gets an identity.
func (c *Client) adapt(ctx context.Context, vm *nodev1.VM, container containerd.Container, netns, called string,
	intent record.Intent) error {
	info, err := container.Info(ctx, containerd.WithoutRefreshedMetadata)
	if err != nil {
		return err
	}
	own := ""
	if info.SnapshotKey == "" {
		if own, err = c.newIdentity(ctx, vm); err != nil {
			return err
		}
	}
	return container.Update(ctx, func(_ context.Context, _ *containerd.Client, obj *containers.Container) error {
		rename(obj, called)
		if err := ready(obj, netns, intent); err != nil || own == "" {
			return err
		}
		return edit(obj, func(s *specs.Spec) { identify(s, own) })
	})
}

// identify gives a container an identity, unless it has one.
func identify(s *specs.Spec, own string) {
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	if s.Annotations[spec.AnnotationContainer] == "" {
		s.Annotations[spec.AnnotationContainer] = own
	}
}

// ready marks obj with the order. One that the same order has made, before godwitd was
// restarted, stays new: Undo removes it.
func ready(obj *containers.Container, netns string, intent record.Intent) error {
	mark := orderMark(intent)
	if obj.Labels[labelOrder] != mark {
		delete(obj.Labels, labelNew)
	}
	delete(obj.Labels, LabelDigest)
	delete(obj.Labels, LabelNode)
	delete(obj.Labels, labelStopped)
	label(obj, labelOrder, mark)
	return edit(obj, func(s *specs.Spec) {
		setNetNS(s, netns)
		delete(s.Annotations, spec.AnnotationDigest)
	})
}

// stop marks obj as that of a VM which a snapshot owns: for people and containerd in its
// labels, for the shim in its runtime spec. A namespace that godwitd made (netns) goes
// with the VM, so the spec names it no more.
func stop(obj *containers.Container, digest, owner, netns string) error {
	delete(obj.Labels, labelOrder)
	delete(obj.Labels, labelNew)
	label(obj, LabelDigest, digest)
	delete(obj.Labels, LabelNode)
	if owner != "" {
		label(obj, LabelNode, owner)
	}
	label(obj, labelStopped, "true")
	unwatch(obj)
	return edit(obj, func(s *specs.Spec) {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[spec.AnnotationDigest] = digest
		if s.Linux == nil {
			return
		}
		for i, ns := range s.Linux.Namespaces {
			if ns.Type == specs.NetworkNamespace && ns.Path == netns {
				s.Linux.Namespaces[i].Path = ""
			}
		}
	})
}

// annotationNetworks is nerdctl's: the hooks of such a container make its network.
const annotationNetworks = "nerdctl/networks"

// connects reports whether the container of that spec makes its network by itself.
func connects(s *specs.Spec) bool {
	return s.Annotations[annotationNetworks] != "" && s.Hooks != nil && len(s.Hooks.CreateRuntime) > 0
}

// unwatch hides obj from the restart monitor, watch undoes it. Somebody who started the
// container meanwhile has said what is wanted.
func unwatch(obj *containers.Container) {
	if wanted := obj.Labels[labelStatus]; wanted != "" {
		label(obj, labelWanted, wanted)
		delete(obj.Labels, labelStatus)
	}
}

func watch(obj *containers.Container) {
	if wanted := obj.Labels[labelWanted]; wanted != "" && obj.Labels[labelStatus] == "" {
		label(obj, labelStatus, wanted)
	}
	delete(obj.Labels, labelWanted)
}

func label(obj *containers.Container, key, value string) {
	if obj.Labels == nil {
		obj.Labels = map[string]string{}
	}
	obj.Labels[key] = value
}

// edit changes the runtime spec of obj.
func edit(obj *containers.Container, change func(*specs.Spec)) error {
	var s specs.Spec
	if err := typeurl.UnmarshalTo(obj.Spec, &s); err != nil {
		return fmt.Errorf("runtime spec of container %s: %w", obj.ID, err)
	}
	change(&s)
	any, err := typeurl.MarshalAny(&s)
	if err != nil {
		return fmt.Errorf("runtime spec of container %s: %w", obj.ID, err)
	}
	obj.Spec = any
	return nil
}

// runtimeSpec rebuilds the OCI spec of the container from the VM's Spec, which came with
// the snapshot: nothing in it may reach into this host. The shim of the node that
// wrote it has taken such things out as well.
func runtimeSpec(sp *spec.Spec, netns string) (*oci.Spec, error) {
	if sp.Container == nil || sp.Container.OCI == nil {
		return nil, fmt.Errorf("VM %s/%s is a VM disk: its wake through containerd: %w", sp.Namespace, sp.ID,
			errdefs.ErrNotImplemented)
	}
	s := sp.Clone().Container.OCI
	if s.Process == nil || s.Linux == nil {
		return nil, fmt.Errorf("spec of VM %s/%s: container has no process or no linux part: %w", sp.Namespace, sp.ID,
			errdefs.ErrInvalidArgument)
	}
	s.Hooks = nil
	s.Root = &specs.Root{Path: "rootfs", Readonly: s.Root != nil && s.Root.Readonly}
	s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return !madeInGuest(m) })
	maps.DeleteFunc(s.Annotations, func(key, _ string) bool {
		return !strings.HasPrefix(key, spec.AnnotationPrefix) || key == spec.AnnotationDigest
	})
	s.Linux.CgroupsPath, s.Linux.Devices, s.Linux.NetDevices, s.Linux.IntelRdt = "", nil, nil, nil
	for i := range s.Linux.Namespaces {
		s.Linux.Namespaces[i].Path = ""
	}
	setNetNS(s, netns)
	return s, nil
}

// madeInGuest reports whether a mount takes nothing from the host. What was copied in
// when the VM booted lies in it already.
func madeInGuest(m specs.Mount) bool {
	return slices.Contains([]string{"proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2"}, m.Type) &&
		!slices.Contains(m.Options, "bind") && !slices.Contains(m.Options, "rbind")
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
