package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// Task is containerd's view of a VM of this node: its container, and the task that runs it.
type Task struct {
	VM        *nodev1.VM
	Container containerd.Container
	Task      containerd.Task
}

// within is a context for calls of containerd about the VM.
func within(ctx context.Context, vm *nodev1.VM) context.Context {
	return namespaces.WithNamespace(ctx, vm.GetNamespace())
}

// Task finds the task of a VM that this node has. FailedPrecondition: the VM sleeps, has stopped, or runs on
// another node; the text says which, and what to do.
func (c *Client) Task(ctx context.Context, vm *nodev1.VM) (*Task, error) {
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	ctx = within(ctx, vm)
	container, err := c.find(ctx, ctr, vm)
	if err != nil {
		return nil, c.absent(ctx, vm, err)
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		return nil, c.absent(ctx, vm, err)
	}
	status, err := task.Status(ctx)
	if err != nil {
		return nil, c.absent(ctx, vm, err)
	}
	if s := status.Status; s == containerd.Stopped || s == containerd.Created {
		return nil, c.absent(ctx, vm, fmt.Errorf("the task is %s: %w", s, errdefs.ErrNotFound))
	}
	return &Task{VM: vm, Container: container, Task: task}, nil
}

// absent says why this node has no task of the VM that runs. Only the answer that there is none counts as that.
func (c *Client) absent(ctx context.Context, vm *nodev1.VM, err error) error {
	if !errdefs.IsNotFound(err) {
		return c.containerdError("look for "+c.name(vm), err)
	}
	if _, err := c.loaded(ctx, vm); err != nil { // which looks where it is
		return err
	}
	if err := c.away(ctx, vm); err != nil {
		return err
	}
	return stopped(c.name(vm))
}

// stopped is said of a VM of this node that does not run, and does not sleep.
func stopped(name string) error {
	return &Problem{What: name + " does not run.", Remedy: fmt.Sprintf("To run it: godwit start %s.", name),
		Cause: errdefs.ErrFailedPrecondition}
}

// away says that a VM sleeps, is lost, or is another node's; nil: it is not, or godwitd does not answer.
func (c *Client) away(ctx context.Context, vm *nodev1.VM) error {
	rec, err := c.recorded(ctx, vm)
	if err != nil {
		return nil //nolint:nilerr // the caller goes on to what decides
	}
	return c.heldAway(rec, vm, c.here(ctx))
}

// surelyAway is away for a caller whom nothing stops after it: that the records do not answer is an error, and so is an
// owner that may be another node. A node without records is asked for none.
func (c *Client) surelyAway(ctx context.Context, vm *nodev1.VM) (away, err error) {
	rec, err := c.recorded(ctx, vm)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err == nil {
		here := c.here(ctx)
		if here == "" && rec.GetOwner().GetNode() != "" {
			return nil, c.unsure(vm, errdefs.ErrUnavailable)
		}
		return c.heldAway(rec, vm, here), nil
	}
	if cfg, failed := c.load(); failed == nil && !cfg.UsesRecords() {
		return nil, nil //nolint:nilerr // it has no VM that sleeps, or is elsewhere
	}
	return nil, c.unsure(vm, err)
}

func (c *Client) unsure(vm *nodev1.VM, err error) error {
	return &Problem{What: fmt.Sprintf("It is not known whether a VM %s sleeps, or is on another node.", c.name(vm)),
		Why: sentence(err.Error()), Remedy: "Try again once godwitd and its controller answer: godwit doctor.", Cause: err}
}

// heldAway says that a VM sleeps, is lost, or is another node's, as its record has it.
func (c *Client) heldAway(rec *nodev1.Record, vm *nodev1.VM, here string) error {
	owner := rec.GetOwner()
	if !rec.GetRivals() && !record.IsLost(rec) && owner.GetDigest() == "" &&
		(owner.GetNode() == "" || here == "" || owner.GetNode() == here) {
		return nil
	}
	p := Held(rec, c.name(vm), here)
	p.Cause = errdefs.ErrFailedPrecondition
	return p
}

// elsewhere says where a VM is that this node's containerd has no container of.
func (c *Client) elsewhere(ctx context.Context, vm *nodev1.VM) error {
	name := c.name(vm)
	if err := c.away(ctx, vm); err != nil {
		return err
	}
	if _, err := c.recorded(ctx, vm); err != nil && !errdefs.IsNotFound(err) {
		return &Problem{What: fmt.Sprintf("This node has no VM %s, and godwitd cannot say where it is.", name),
			Why: sentence(err.Error()), Cause: err}
	}
	return &Problem{What: fmt.Sprintf("This node has no VM %s.", name), Remedy: fmt.Sprintf(
		"To see all VMs: godwit ps -a -A. To make it: godwit run --name %s IMAGE.", name), Cause: errdefs.ErrNotFound}
}

// recorded asks godwitd who has a VM.
func (c *Client) recorded(ctx context.Context, vm *nodev1.VM) (*nodev1.Record, error) {
	return c.recordedFor(ctx, &nodev1.GetRequest{Vm: vm})
}

func (c *Client) recordedFor(ctx context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	node, err := c.Node(ctx)
	if err != nil {
		return nil, err
	}
	rec, err := node.Recorded(ctx, req)
	return rec, record.FromWire(err)
}

// hereTimeout bounds what godwitd may take to say its name.
const hereTimeout = 2 * time.Second

// whereabouts is what the daemon knows of the VM. A daemon that does not answer has not found it.
func (c *Client) whereabouts(ctx context.Context, vm *nodev1.VM) (status string, owner *nodev1.Owner, found bool) {
	info, _, err := c.listed(ctx, vm)
	return info.GetStatus(), info.GetOwner(), info != nil && err == nil
}

// self is the name of the node that is asked.
func (c *Client) self() (string, error) {
	if node := c.here(context.Background()); node != "" {
		return node, nil
	}
	return "", errdefs.ErrUnavailable
}

// here is the name of the node that is asked; empty: it does not say.
func (c *Client) here(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, hereTimeout)
	defer cancel()
	node, err := c.Node(ctx)
	if err != nil {
		return ""
	}
	info, err := node.Info(ctx, &nodev1.InfoRequest{})
	if err != nil {
		return ""
	}
	return info.GetNode()
}

// Explain says what an error of godwitd about a VM means: one that tells who has it, in words for a user. nil: it tells
// nothing of the kind.
func (c *Client) Explain(ctx context.Context, err error) *Problem {
	held, ok := errors.AsType[*record.HeldError](err)
	if !ok || held.Record == nil {
		return nil
	}
	p := Held(held.Record, c.name(held.Record.GetVm()), c.here(ctx))
	p.Cause = err
	return p
}

// listed finds the VM in godwitd's list of the cluster; nil: it is not in the list. A warning says why the list is
// not whole.
func (c *Client) listed(ctx context.Context, vm *nodev1.VM) (info *nodev1.VMInfo, warning string, err error) {
	node, err := c.Node(ctx)
	if err != nil {
		return nil, "", err
	}
	resp, err := node.VMs(ctx, &nodev1.VMsRequest{Namespace: vm.GetNamespace()})
	if err != nil {
		return nil, "", record.FromWire(err)
	}
	for _, info := range resp.GetVms() {
		if key(info.GetVm()) == key(vm) {
			return info, resp.GetWarning(), nil
		}
	}
	return nil, resp.GetWarning(), nil
}

// How long the end of a VM may come later than that of its processes, and how often it is looked for.
const (
	goneBound = time.Second
	gonePause = 100 * time.Millisecond
)

// goneSoon is gone for a process that was killed: perhaps with its VM.
func (c *Client) goneSoon(ctx context.Context, vm *nodev1.VM) error {
	for begun := time.Now(); ; {
		err := c.gone(ctx, vm)
		if err != nil || time.Since(begun) > goneBound {
			return err
		}
		select {
		case <-time.After(gonePause):
		case <-ctx.Done():
			return nil
		}
	}
}

// gone says what has become of a VM whose process ended without a word; nil: it runs as before.
func (c *Client) gone(ctx context.Context, vm *nodev1.VM) error {
	_, err := c.Task(ctx, vm)
	if err == nil {
		return nil
	}
	p := &Problem{What: c.name(vm) + " went away meanwhile.", Cause: fmt.Errorf("%w: %v", errdefs.ErrAborted, err)}
	if why, ok := errors.AsType[*Problem](err); ok {
		p.Why, p.Remedy = why.What+" "+why.Why, why.Remedy
	} else {
		p.Why = sentence(err.Error())
	}
	return p
}
