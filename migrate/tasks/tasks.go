// Package tasks is godwitd as a client of containerd: it makes the container object, the network and the task of a
// VM that wakes on this node. It cleans up after a VM that left this node. containerd itself knows nothing of
// snapshots: it sees an ordinary Create whose options say what to restore.
package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/migrate/engine"
)

// Labels of a container object. containerd's restart monitor looks at containers with a
// labelStatus and at no others, whatever their policy: a sleeping VM's is kept under
// another name, or the monitor would wake it.
const (
	LabelDigest  = "godwit.dev/digest"  // the snapshot that owns the VM
	LabelNode    = "godwit.dev/node"    // the node that the VM went to
	LabelManaged = "godwit.dev/managed" // made by godwitd, not by a user
	labelStopped = "containerd.io/restart.explicitly-stopped"
	labelStatus  = "containerd.io/restart.status"
	labelWanted  = "godwit.dev/restart-status" // labelStatus of a VM that sleeps

	labelLogURI  = "nerdctl/log-uri"   // where nerdctl logs reads
	labelNerdctl = "nerdctl/state-dir" // of what nerdctl keeps on the host

	labelOrder = "godwit.dev/order" // operation/attempt that makes, or made, its task
	labelNew   = "godwit.dev/new"   // the order made the container too
)

func orderMark(i record.Intent) string { return fmt.Sprintf("%s/%d", i.Operation, i.Attempt) }

// dialTimeout of containerd, which may not be there yet.
const dialTimeout = 5 * time.Second

// Client of this node's containerd.
type Client struct {
	containerd *containerd.Client
	config     *config.Config
	configPath string
	spec       SpecOf
	networks   *networks
	serial     serial
	making     making

	Kept KeptDisks // of this node; nil: none
	// Called says what the record calls a VM; empty: by its id. nil: so are all.
	Called func(ctx context.Context, vm *nodev1.VM) (string, error)
}

// SpecOf answers the Spec that a snapshot holds.
type SpecOf func(ctx context.Context, repository, digest string) (*spec.Spec, error)

// New returns a client of the containerd that the config names. It does not wait for
// it: containerd may start after godwitd, and restart under it.
func New(cfg *config.Config, configPath string, spec SpecOf) (*Client, error) {
	c, err := containerd.New(cfg.Containerd.Address, containerd.WithTimeout(dialTimeout),
		containerd.WithDefaultRuntime(cfg.Containerd.Runtime),
		containerd.WithExtraDialOpts(append(failpoint.Client(), grpc.WithContextDialer(dial))))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s (containerd.address): %w: %w", cfg.Containerd.Address,
			errdefs.ErrUnavailable, err)
	}
	return &Client{containerd: c, config: cfg, configPath: configPath, spec: spec, networks: newNetworks(cfg)}, nil
}

// Close the connection.
func (c *Client) Close() error { return c.containerd.Close() }

// Create makes container object, network and task of a VM that is to be restored here.
// The task is CREATED and has not executed an instruction. A task that the same order
// has made before is a success. On error nothing is left. An Undo of the order ends it.
func (c *Client) Create(ctx context.Context, vm *nodev1.VM, order engine.Restore) (err error) {
	ctx, end := c.making.begin(namespaces.WithNamespace(ctx, vm.GetNamespace()), vm, order.Intent)
	defer end()
	defer func() {
		if err != nil {
			if cause := context.Cause(ctx); errdefs.IsAborted(cause) {
				err = errors.Join(cause, err)
			}
			err = fmt.Errorf("create task of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
		}
	}()
	unlock, err := c.serial.lock(ctx, vm)
	if err != nil {
		return err
	}
	defer unlock()
	made, err := c.clear(ctx, vm, order.Intent)
	if made || err != nil {
		return err
	}
	sp, err := c.specOf(ctx, order)
	if err != nil {
		return err
	}
	if sp.Pod != nil {
		return awaitsCRI(sp, c.config.Node)
	}
	if err := c.create(ctx, vm, sp, order); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return errors.Join(err, c.unmake(undo, vm, order, true))
	}
	return nil
}

// create marks the container object with the order before anything else is made, so
// that Undo knows what is whose.
func (c *Client) create(ctx context.Context, vm *nodev1.VM, sp *spec.Spec, order engine.Restore) error {
	left, err := c.remains(ctx, vm)
	if err != nil {
		return err
	}
	uri := order.Stdio
	if uri == "" {
		uri = left.logURI
	}
	creator, err := c.stdio(vm, uri, terminal(sp))
	if err != nil {
		return err
	}
	netns := ""
	if len(sp.NICs) > 0 && !left.connects {
		netns = c.networks.path(vm)
	}
	container, err := c.container(ctx, vm, sp, netns, order.Intent)
	if err != nil {
		return err
	}
	if netns != "" {
		if err := c.networks.connect(ctx, vm, sp.NICs); err != nil {
			return err
		}
	}
	options, err := record.Order(c.configPath, order.Intent)
	if err != nil {
		return err
	}
	_, err = container.NewTask(ctx, creator, func(_ context.Context, _ *containerd.Client,
		info *containerd.TaskInfo) error {
		info.Options = options
		return nil
	})
	return err
}

// remains is what the container object that a VM has left on this node does by itself: its
// hooks fill an empty network namespace, and its output has a place. All of it is empty
// where there is no such object.
type remains struct {
	connects bool
	logURI   string
}

func (c *Client) remains(ctx context.Context, vm *nodev1.VM) (remains, error) {
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if errdefs.IsNotFound(err) {
		return remains{}, nil
	}
	if err != nil {
		return remains{}, err
	}
	s, err := container.Spec(ctx)
	if err != nil {
		return remains{}, err
	}
	labels, err := container.Labels(ctx)
	if err != nil {
		return remains{}, err
	}
	return remains{connects(s), labels[labelLogURI]}, nil
}

// Start resumes the task; started before, it succeeds.
func (c *Client) Start(ctx context.Context, vm *nodev1.VM) error {
	ctx = namespaces.WithNamespace(ctx, vm.GetNamespace())
	err := c.start(ctx, vm)
	if err == nil {
		err = c.watched(ctx, vm)
	}
	if err != nil {
		return fmt.Errorf("start task of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return nil
}

// start is one call: a VM that moves stands still for it.
func (c *Client) start(ctx context.Context, vm *nodev1.VM) error {
	_, err := c.containerd.TaskService().Start(ctx, &tasksapi.StartRequest{ContainerID: vm.GetId()})
	if err = errgrpc.ToNative(err); err == nil || errdefs.IsAlreadyExists(err) {
		return nil
	}
	task, terr := c.task(ctx, vm)
	if terr != nil {
		return err
	}
	if status, serr := task.Status(ctx); serr == nil && status.Status == containerd.Running {
		return nil
	}
	return err
}

// watched gives the container of a VM that runs again back to the restart monitor. No
// earlier: it kills a task that is not yet what the label wants.
func (c *Client) watched(ctx context.Context, vm *nodev1.VM) error {
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if err != nil {
		return err
	}
	labels, err := container.Labels(ctx)
	if err != nil || labels[labelWanted] == "" {
		return err
	}
	return container.Update(ctx, func(_ context.Context, _ *containerd.Client, obj *containers.Container) error {
		watch(obj)
		return nil
	})
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

// clear deletes a stopped task that stands in the way of a new one. It reports whether
// the task that stands there is what the order wants; any other live one is an error.
func (c *Client) clear(ctx context.Context, vm *nodev1.VM, intent record.Intent) (made bool, err error) {
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	task, err := container.Task(ctx, nil)
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
	labels, err := container.Labels(ctx)
	if err != nil {
		return false, err
	}
	switch {
	case status.Status == containerd.Stopped:
		return false, c.deleteTask(ctx, vm, false)
	case labels[labelOrder] == orderMark(intent):
		return true, nil
	default:
		return false, fmt.Errorf("a task of that name is %s: %w", status.Status, errdefs.ErrAlreadyExists)
	}
}

func (c *Client) task(ctx context.Context, vm *nodev1.VM) (containerd.Task, error) {
	container, err := c.containerd.LoadContainer(ctx, vm.GetId())
	if err != nil {
		return nil, err
	}
	return container.Task(ctx, nil)
}

func terminal(sp *spec.Spec) bool {
	c := sp.Container
	return c != nil && c.OCI != nil && c.OCI.Process != nil && c.OCI.Process.Terminal
}

// stdio of a task that no client is attached to: the log URI of the request, else the
// configured one, {namespace} and {id} filled in.
func (c *Client) stdio(vm *nodev1.VM, uri string, terminal bool) (cio.Creator, error) {
	if uri == "" {
		uri = c.config.StdioURI
	}
	if uri == "" || uri == record.NoOutput {
		return cio.NullIO, nil
	}
	u, err := config.Output(uri, vm.GetNamespace(), vm.GetId())
	if err != nil {
		return nil, fmt.Errorf("stdio_uri %q: %w: %w", uri, errdefs.ErrInvalidArgument, err)
	}
	switch u.Scheme {
	case "file", "binary", "fifo":
	default:
		return nil, fmt.Errorf("stdio_uri %q: scheme %q is not file, binary or fifo: %w", uri, u.Scheme,
			errdefs.ErrInvalidArgument)
	}
	if terminal {
		return cio.TerminalLogURI(u), nil
	}
	return cio.LogURI(u), nil
}
