package client

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/errno"
)

// LabelName is the label of a container that holds its name.
const LabelName = record.LabelName

// lookTimeout bounds what containerd may take to answer for its containers.
const lookTimeout = 10 * time.Second

// Container is what containerd knows of a VM, or of another container.
type Container struct {
	VM      *nodev1.VM
	Name    string // of nerdctl's label; may be empty
	Runtime string // containerd's name of its runtime, or a shim's path

	task   string // containerd's id: that of a sandbox is not its VM's if the pod has a name for the VM
	member bool   // of a pod
	own    bool   // the runtime is godwit's, and it is no container of a pod, whose VM is the sandbox's
}

func (f *Container) isVM() bool { return f.own }

// vm refuses a container of another runtime.
func (f *Container) vm() (*nodev1.VM, error) {
	if f.member {
		return nil, &Problem{What: key(f.VM) + " is a container of a pod, whose VM is the sandbox's.",
			Remedy: fmt.Sprintf("Containers of pods are CRI's: crictl exec, logs, stats or stop %s.", f.VM.GetId()),
			Cause:  errdefs.ErrFailedPrecondition}
	}
	if !f.own {
		return nil, fmt.Errorf("%s is a container of runtime %s, and no VM of godwit. "+
			"To make it a VM, run its image with --runtime %s: %w",
			key(f.VM), f.Runtime, config.Default().Containerd.Runtime, errdefs.ErrFailedPrecondition)
	}
	return f.VM, nil
}

// matching lists the containers of a namespace whose name is ref's, or whose id begins with ref's.
func (c *Client) matching(ctx context.Context, ref *nodev1.VM) ([]*Container, error) {
	all, err := c.containers(ctx, ref.GetNamespace(),
		fmt.Sprintf(`labels."%s"==%s`, LabelName, strconv.Quote(ref.GetId())),
		fmt.Sprintf(`id~=%s`, strconv.Quote("^"+regexp.QuoteMeta(ref.GetId()))))
	if err != nil {
		return nil, err
	}
	sandboxes, err := c.sandboxes(ctx, ref.GetNamespace())
	return append(all, beginning(ref, sandboxes)...), err
}

func (c *Client) containers(ctx context.Context, namespace string, filters ...string) ([]*Container, error) {
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, namespace), lookTimeout)
	defer cancel()
	list, err := ctr.ContainerService().List(ctx, filters...)
	if err != nil {
		return nil, c.containerdError("list containers", err)
	}
	all := make([]*Container, 0, len(list))
	for _, obj := range list {
		all = append(all, c.container(namespace, &obj))
	}
	return all, nil
}

func (c *Client) container(namespace string, obj *containers.Container) *Container {
	id := record.SandboxVM(obj.ID, obj.Labels, obj.Spec.GetValue())
	return &Container{VM: &nodev1.VM{Namespace: namespace, Id: id}, task: obj.ID, Name: obj.Labels[LabelName],
		Runtime: obj.Runtime.Name, member: c.own(obj.Runtime.Name) && record.IsMember(obj.Labels),
		own: c.own(obj.Runtime.Name) && !record.IsMember(obj.Labels)}
}

// find is the container of a VM in the namespace of ctx. That of a pod with a name for its VM is the sandbox that runs
// it, whose id CRI makes by chance.
func (c *Client) find(ctx context.Context, ctr *containerd.Client, vm *nodev1.VM) (containerd.Container, error) {
	container, err := ctr.LoadContainer(ctx, vm.GetId())
	if !errdefs.IsNotFound(err) || !record.MayBePod(vm.GetId()) {
		return container, err
	}
	all, failed := c.containers(ctx, vm.GetNamespace(), record.SandboxFilter)
	if failed != nil {
		return nil, failed
	}
	for _, f := range all {
		if f.VM.GetId() == vm.GetId() && c.alive(ctx, f.task) {
			return ctr.LoadContainer(ctx, f.task)
		}
	}
	return nil, err
}

// own reports whether a runtime is godwit's: by the configured name, the usual one, or the path of the shim.
func (c *Client) own(runtime string) bool {
	configured := config.Default().Containerd.Runtime
	if cfg, err := c.load(); err == nil {
		configured = cfg.Containerd.Runtime
	}
	return runtime == configured || runtime == config.Default().Containerd.Runtime ||
		path.Base(runtime) == "containerd-shim-godwit-v1"
}

// unwrapped gives an error that no part has classed the class of its cause in the operating system, else Unavailable.
func unwrapped(err error) error {
	if class := errno.Resolve(err); class == nil || class == errdefs.ErrUnknown {
		return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	return err
}
