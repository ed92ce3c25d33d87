package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// Streams are where the streams of a VM's process go. A nil stream goes nowhere.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer // with a terminal, all output goes to Stdout
}

// Process is that of a VM which runs, and whose streams are here.
type Process struct {
	Terminal bool // it has one

	vm      *nodev1.VM
	name    string             // as the user calls the VM
	task    containerd.Process // or an exec of it
	exit    <-chan containerd.ExitStatus
	left    chan struct{} // closed by Leave; nil: there is no way to leave
	leaving sync.Once
	ended   func(context.Context, int) error // of an exec: tidies up, and says why it ended without a word
}

// Codes of a CommandError, which are docker's and the shell's.
const (
	NotRunnable = 126 // such as a directory, or a file without the right to run
	NoCommand   = 127
)

// CommandError says that the command of a VM could not be started. Code is NotRunnable or NoCommand.
type CommandError struct {
	Code int
	Dir  string // of the VM, in which the command was to run and cannot; empty: it is about the command itself
	Err  error
}

func (e *CommandError) Error() string { return e.Err.Error() }
func (e *CommandError) Unwrap() error { return e.Err }

// wrongDir is how runc and the guest's agent say that a working directory cannot be entered.
var wrongDir = regexp.MustCompile(`chdir to cwd \("([^"]*)"\) set in config.json failed: `)

// commandError finds out whether err is about the command.
func commandError(err error) error {
	text := err.Error()
	if dir := wrongDir.FindStringSubmatch(text); dir != nil {
		code := NotRunnable
		if strings.Contains(text, "no such file") {
			code = NoCommand
		}
		return &CommandError{Code: code, Dir: dir[1], Err: err}
	}
	switch {
	case !strings.Contains(text, `exec: "`):
		return err
	case strings.Contains(text, "not found") || strings.Contains(text, "no such file"):
		return &CommandError{Code: NoCommand, Err: err}
	default:
		return &CommandError{Code: NotRunnable, Err: err}
	}
}

// Start runs a VM that was made, or was stopped: with its disk as it was. streams nil: its output goes to the log that
// its label names. What cannot run leaves the VM as it was.
func (c *Client) Start(ctx context.Context, vm *nodev1.VM, streams *Streams) (*Process, error) {
	p, _, err := c.startAsked(ctx, vm, streams)
	return p, err
}

// startAsked is Start. It reports whether the VM's shim was asked, which makes a record.
func (c *Client) startAsked(ctx context.Context, vm *nodev1.VM, streams *Streams) (p *Process, asked bool, err error) {
	ctx = within(ctx, vm)
	if err := c.refusePod(ctx, vm, podStart); err != nil {
		return nil, false, err
	}
	container, err := c.loaded(ctx, vm)
	if err != nil {
		return nil, false, err
	}
	if err := c.startable(ctx, vm, container); err != nil {
		return nil, false, err
	}
	p, err = c.start(ctx, vm, container, streams)
	if err != nil {
		return nil, true, fmt.Errorf("start VM %s: %w", c.name(vm), commandError(err))
	}
	return p, true, nil
}

func (c *Client) start(ctx context.Context, vm *nodev1.VM, container containerd.Container,
	streams *Streams) (*Process, error) {
	spec, err := container.Spec(ctx)
	if err != nil {
		return nil, err
	}
	p := &Process{vm: vm, name: c.name(vm), Terminal: spec.Process != nil && spec.Process.Terminal}
	var creator cio.Creator
	var input *closing
	if streams != nil {
		creator, input = streamed(streams, p.Terminal)
	} else if creator, err = c.logOf(ctx, vm, container, p.Terminal); err != nil {
		return nil, err
	}
	task, err := container.NewTask(ctx, creator)
	if err != nil {
		return nil, shimEnded(err)
	}
	p.task = task
	waiting := context.WithoutCancel(ctx) // Wait has a context of its own
	if p.exit, err = task.Wait(waiting); err == nil {
		err = task.Start(ctx)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		if input != nil {
			go input.tell(func() { _ = p.CloseInput(waiting) })
		}
		return p, restarts(ctx, container, false)
	}
	after, cancel := cleaning(ctx)
	defer cancel()
	if _, gone := task.Delete(after, containerd.WithProcessKill); gone != nil && !errdefs.IsNotFound(gone) {
		err = errors.Join(err, fmt.Errorf("end the task: %w", gone))
	}
	return nil, shimEnded(err)
}

// shimEnded says that a shim ended before its answer. containerd passes that on as text, without a class.
func shimEnded(err error) error {
	if err == nil || !errdefs.IsUnknown(err) || !strings.Contains(err.Error(), ttrpc.ErrClosed.Error()) {
		return err
	}
	return fmt.Errorf("the shim ended before its answer: %w: %w", err, errdefs.ErrUnavailable)
}

// loaded is the container of a VM that this node has.
func (c *Client) loaded(ctx context.Context, vm *nodev1.VM) (containerd.Container, error) {
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	container, err := ctr.LoadContainer(ctx, vm.GetId())
	if errdefs.IsNotFound(err) {
		return nil, c.elsewhere(ctx, vm)
	}
	if err != nil {
		return nil, c.containerdError("look for VM "+c.name(vm), err)
	}
	return container, nil
}

// startable refuses a VM that runs, sleeps, or is another node's, and deletes a task that has ended.
func (c *Client) startable(ctx context.Context, vm *nodev1.VM, container containerd.Container) error {
	task, status, err := c.taskOf(ctx, vm, container)
	if err != nil {
		return err
	}
	if task != nil && status == containerd.Unknown { // which containerd says of a shim that it has no answer of
		return fmt.Errorf("it is not known whether VM %s runs: its shim does not answer. To see all VMs: godwit ps: %w",
			c.name(vm), errdefs.ErrUnavailable)
	}
	if task != nil && status != containerd.Stopped {
		return fmt.Errorf("VM %s is %s already. To end it first: godwit stop %s: %w", c.name(vm), status, c.name(vm),
			errdefs.ErrAlreadyExists)
	}
	if err := c.away(ctx, vm); err != nil {
		return err
	}
	if task == nil {
		return nil
	}
	if _, err := task.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete the task of VM %s that has ended: %w", c.name(vm), err)
	}
	return nil
}

// logOf sends the output of a task to the log that a label names. A container that godwitd has made, of a VM that came
// from elsewhere, has no label: its output goes where it went when the VM woke.
func (c *Client) logOf(ctx context.Context, vm *nodev1.VM, container containerd.Container,
	terminal bool) (cio.Creator, error) {
	labels, err := container.Labels(ctx)
	if err != nil {
		return nil, err
	}
	log := labels[LabelLogURI]
	if log == "" && labels[labelManaged] != "" {
		if log, err = c.logURI(vm.GetNamespace(), vm.GetId()); err != nil {
			return nil, err
		}
	}
	if log == "" || log == record.NoOutput {
		return cio.NullIO, nil
	}
	u, err := url.Parse(log)
	if err != nil {
		return nil, fmt.Errorf("label %s: %w: %w", LabelLogURI, err, errdefs.ErrFailedPrecondition)
	}
	if terminal {
		return cio.TerminalLogURI(u), nil
	}
	return cio.LogURI(u), nil
}

// Labels of containerd's restart monitor.
const (
	labelRestart = "containerd.io/restart.status"
	labelEnded   = "containerd.io/restart.explicitly-stopped"
)

// restarts tells containerd's restart monitor whether it is meant that a VM does not run. Most have no policy.
func restarts(ctx context.Context, container containerd.Container, ended bool) error {
	labels, err := container.Labels(ctx)
	if err != nil || labels[labelRestart] == "" {
		return err
	}
	return container.Update(ctx, func(_ context.Context, _ *containerd.Client, obj *containers.Container) error {
		obj.Labels[labelEnded] = fmt.Sprint(ended)
		return nil
	})
}

// Wait answers the exit code once the process has ended and its output is here. A process that a signal ended has 128
// and the signal's number.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-p.left:
		return 0, nil
	case status := <-p.exit:
		code, _, err := status.Result()
		if err != nil {
			return 0, fmt.Errorf("wait for VM %s: %w", p.name, unwrapped(err))
		}
		p.task.IO().Wait()
		if p.ended != nil {
			return int(code), p.ended(ctx, int(code))
		}
		return int(code), nil
	}
}

// Signal the process.
func (p *Process) Signal(ctx context.Context, signal syscall.Signal) error {
	return p.task.Kill(within(ctx, p.vm), signal)
}

// Resize its terminal.
func (p *Process) Resize(ctx context.Context, width, height uint32) error {
	return p.task.Resize(within(ctx, p.vm), width, height)
}

// CloseInput tells the process that no more input comes.
func (p *Process) CloseInput(ctx context.Context) error {
	return p.task.CloseIO(within(ctx, p.vm), containerd.WithStdinCloser)
}

// alive reports whether a container has a task that has not ended. One that cannot be asked may be.
func (c *Client) alive(ctx context.Context, id string) bool {
	ctr, err := c.Containerd()
	if err != nil {
		return true
	}
	container, err := ctr.LoadContainer(ctx, id)
	if err != nil {
		return !errdefs.IsNotFound(err)
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		return !errdefs.IsNotFound(err)
	}
	status, err := task.Status(ctx)
	return err != nil || status.Status != containerd.Stopped
}

// stopDefault is how long a process may take to end by itself.
const stopDefault = 10 * time.Second
