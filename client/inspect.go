package client

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// Inspection is all that this node knows of a VM. What was not read is left out, and Unread says why.
type Inspection struct {
	Namespace string              `json:"namespace"`
	ID        string              `json:"id"`
	VM        *nodev1.VMInfo      `json:"vm,omitempty"`        // as godwitd lists it; nil: it does not
	Record    *nodev1.Record      `json:"record,omitempty"`    // who owns the VM, and its snapshots; nil: it has none
	Container *InspectedContainer `json:"container,omitempty"` // nil: this node has none
	Task      *InspectedTask      `json:"task,omitempty"`      // nil: it does not run here
	Unread    []string            `json:"unread,omitempty"`
}

// InspectedContainer is what containerd keeps of a VM.
type InspectedContainer struct {
	Name        string            `json:"name,omitempty"`
	Image       string            `json:"image,omitempty"`
	Runtime     string            `json:"runtime"`
	Snapshotter string            `json:"snapshotter,omitempty"`
	Created     time.Time         `json:"createdTime"`
	Labels      map[string]string `json:"labels,omitempty"`
	Spec        json.RawMessage   `json:"spec,omitempty"` // of OCI
}

// InspectedTask is containerd's view of a VM that runs, or has ended.
type InspectedTask struct {
	Status   string     `json:"status"`
	PID      uint32     `json:"pid"` // on this host
	ExitCode uint32     `json:"exitCode"`
	ExitTime *time.Time `json:"exitTime,omitempty"`
}

// Inspect gathers what godwitd and containerd know. NotFound is answered only if both have said so.
func (c *Client) Inspect(ctx context.Context, vm *nodev1.VM) (*Inspection, error) {
	i := &Inspection{Namespace: vm.GetNamespace(), ID: vm.GetId()}
	found := i.daemon(ctx, c, vm)
	here, err := i.containerd(ctx, c, vm)
	if err != nil {
		i.Unread = append(i.Unread, err.Error())
	}
	if found || here {
		return i, nil
	}
	if len(i.Unread) > 0 {
		return nil, fmt.Errorf("inspect VM %s: %s: %w", c.name(vm), i.Unread[0], errdefs.ErrUnavailable)
	}
	return nil, fmt.Errorf("there is no VM %s. To see all VMs: godwit ps -A: %w", c.name(vm), errdefs.ErrNotFound)
}

// daemon asks godwitd.
func (i *Inspection) daemon(ctx context.Context, c *Client, vm *nodev1.VM) (found bool) {
	node, err := c.Node(ctx)
	if err != nil {
		i.Unread = append(i.Unread, err.Error())
		return false
	}
	info, warning, err := c.listed(ctx, vm)
	if err != nil {
		i.Unread = append(i.Unread, "list of VMs: "+err.Error())
	}
	if warning != "" {
		i.Unread = append(i.Unread, warning)
	}
	if info != nil {
		i.VM, found = info, true
	}
	rec, err := node.Recorded(ctx, &nodev1.GetRequest{Vm: vm})
	switch err = record.FromWire(err); {
	case err == nil:
		i.Record, found = rec, true
	case !errdefs.IsNotFound(err):
		i.Unread = append(i.Unread, "record: "+err.Error())
	}
	return found
}

// containerd asks containerd; false: it has no such container.
func (i *Inspection) containerd(ctx context.Context, c *Client, vm *nodev1.VM) (found bool, err error) {
	ctr, err := c.Containerd()
	if err != nil {
		return false, err
	}
	ctx = within(ctx, vm)
	container, err := c.find(ctx, ctr, vm)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("container: %w", err)
	}
	info, err := container.Info(ctx, containerd.WithoutRefreshedMetadata)
	if err != nil {
		return false, fmt.Errorf("container: %w", err)
	}
	own := &InspectedContainer{Name: info.Labels[LabelName], Image: info.Image, Runtime: info.Runtime.Name,
		Snapshotter: info.Snapshotter, Created: info.CreatedAt, Labels: info.Labels}
	if spec := info.Spec.GetValue(); json.Valid(spec) {
		own.Spec = spec
	}
	i.Container = own
	task, err := container.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return true, fmt.Errorf("task: %w", err)
	}
	status, err := task.Status(ctx)
	if err != nil {
		return true, fmt.Errorf("task: %w", err)
	}
	i.Task = &InspectedTask{Status: string(status.Status), PID: task.Pid(), ExitCode: status.ExitStatus}
	if !status.ExitTime.IsZero() && status.Status == containerd.Stopped {
		i.Task.ExitTime = &status.ExitTime
	}
	return true, nil
}
