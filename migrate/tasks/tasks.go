// Package tasks is godwitd as a client of containerd: it makes the container object,
// the network and the task of a VM that wakes on this node, and cleans up after one
// that left it. containerd itself knows nothing of snapshots: it sees an ordinary
// Create whose options say what to restore.
package tasks

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
)

// Labels of a container object. The first two are ours, the third is what keeps
// containerd's restart monitor from waking a VM by accident.
const (
	LabelDigest  = "godwit.dev/digest"  // the snapshot that owns the VM
	LabelManaged = "godwit.dev/managed" // made by godwitd, not by a user
	labelStopped = "containerd.io/restart.explicitly-stopped"
)

// undoTimeout bounds the removal of what a failed Create made.
const undoTimeout = 30 * time.Second

// Client of this node's containerd.
type Client struct {
	containerd *containerd.Client
	config     *config.Config
	configPath string
}

// New returns a client of the containerd that the config names. It does not wait for
// it: containerd may start after godwitd, and restart under it.
func New(cfg *config.Config, configPath string) (*Client, error) {
	c, err := containerd.New(cfg.Containerd.Address, containerd.WithTimeout(5*time.Second), containerd.WithDefaultRuntime(cfg.Containerd.Runtime))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s (containerd.address): %w: %w", cfg.Containerd.Address, errdefs.ErrUnavailable, err)
	}
	return &Client{containerd: c, config: cfg, configPath: configPath}, nil
}

// Close the connection.
func (c *Client) Close() error { return c.containerd.Close() }

// Create makes container object, network and task of a VM that is to be restored here.
// The task is CREATED and has not executed an instruction. On error nothing is left.
func (c *Client) Create(ctx context.Context, vm *nodev1.VM, sp *spec.Spec, intent record.Intent, stdio string) (err error) {
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	defer func() {
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
			defer cancel()
			_ = c.Undo(undo, vm)
			err = fmt.Errorf("create task of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
		}
	}()
	if err := c.clear(ctx, vm); err != nil {
		return err
	}
	netns, err := c.network(ctx, vm, sp)
	if err != nil {
		return err
	}
	container, err := c.container(ctx, vm, sp, netns)
	if err != nil {
		return err
	}
	creator, err := c.stdio(vm, stdio, sp.Container != nil && sp.Container.OCI.Process.Terminal)
	if err != nil {
		return err
	}
	_, err = container.NewTask(ctx, creator, func(_ context.Context, _ *containerd.Client, info *containerd.TaskInfo) error {
		info.Options = &machinev1.RestoreOptions{ConfigPath: c.configPath, Operation: intent.Operation, Attempt: intent.Attempt, Digest: intent.Digest}
		return nil
	})
	return err
}

// Start thaws the task; started before, it succeeds.
func (c *Client) Start(ctx context.Context, vm *nodev1.VM) error {
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	task, err := c.task(ctx, vm)
	if err != nil {
		return fmt.Errorf("start task of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	if err := task.Start(ctx); err != nil && !errdefs.IsAlreadyExists(err) {
		if status, serr := task.Status(ctx); serr == nil && status.Status == containerd.Running {
			return nil
		}
		return fmt.Errorf("start task of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return nil
}

// Running reports whether the task runs or is paused.
func (c *Client) Running(ctx context.Context, vm *nodev1.VM) (bool, error) {
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	task, err := c.task(ctx, vm)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	status, err := task.Status(ctx)
	if err != nil {
		return false, err
	}
	return status.Status == containerd.Running || status.Status == containerd.Paused, nil
}

// Undo removes what Create made: the task, the network, and the container object if
// godwitd made it. What is not there is no error.
func (c *Client) Undo(ctx context.Context, vm *nodev1.VM) error {
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	if err := c.deleteTask(ctx, vm, true); err != nil {
		return err
	}
	if err := c.release(ctx, vm); err != nil {
		return err
	}
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	labels, err := container.Labels(ctx)
	if err != nil || labels[LabelManaged] == "" || labels[LabelDigest] != "" {
		return err
	}
	if err := container.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// Hibernated cleans up after a VM that left this node: the stopped task and the network
// go; the container object stays, labelled with the digest that owns the VM now.
func (c *Client) Hibernated(ctx context.Context, vm *nodev1.VM, digest string) error {
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if err == nil {
		_, err = container.SetLabels(ctx, map[string]string{LabelDigest: digest, labelStopped: "true"})
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("label container %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	if err := c.deleteTask(ctx, vm, false); err != nil {
		return fmt.Errorf("delete stopped task of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return c.release(ctx, vm)
}

// clear deletes a stopped task that stands in the way of a new one; a live one is an
// error.
func (c *Client) clear(ctx context.Context, vm *nodev1.VM) error {
	task, err := c.task(ctx, vm)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	status, err := task.Status(ctx)
	if err != nil {
		return err
	}
	if status.Status != containerd.Stopped {
		return fmt.Errorf("a task of that name is %s: %w", status.Status, errdefs.ErrAlreadyExists)
	}
	return c.deleteTask(ctx, vm, false)
}

func (c *Client) task(ctx context.Context, vm *nodev1.VM) (containerd.Task, error) {
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if err != nil {
		return nil, err
	}
	return container.Task(ctx, nil)
}

// deleteTask waits for a task that is about to stop; with kill it ends one that is not.
func (c *Client) deleteTask(ctx context.Context, vm *nodev1.VM, kill bool) error {
	task, err := c.task(ctx, vm)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	exited, err := task.Wait(ctx)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if kill {
		if err := task.Kill(ctx, syscall.SIGKILL); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			return err
		}
	}
	if status, serr := task.Status(ctx); exited != nil && serr == nil && status.Status != containerd.Created && status.Status != containerd.Stopped {
		select {
		case <-exited:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	_, err = task.Delete(ctx)
	if errdefs.IsNotFound(err) { // an attached client was faster
		return nil
	}
	return err
}

// stdio of a task that no client is attached to: the log URI of the request, else the
// configured one, {namespace} and {id} filled in.
func (c *Client) stdio(vm *nodev1.VM, uri string, terminal bool) (cio.Creator, error) {
	if uri == "" {
		uri = c.config.StdioURI
	}
	if uri == "" || uri == "null://" {
		return cio.NullIO, nil
	}
	uri = strings.NewReplacer("{namespace}", vm.GetNamespace(), "{id}", vm.GetId()).Replace(uri)
	u, err := url.Parse(uri)
	if err != nil {
		return nil, fmt.Errorf("stdio_uri %q: %w: %w", uri, errdefs.ErrInvalidArgument, err)
	}
	switch u.Scheme {
	case "file", "binary", "fifo":
	default:
		return nil, fmt.Errorf("stdio_uri %q: scheme %q is not file, binary or fifo: %w", uri, u.Scheme, errdefs.ErrInvalidArgument)
	}
	if terminal {
		return cio.TerminalLogURI(u), nil
	}
	return cio.LogURI(u), nil
}
