package client

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/signal"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// ParseSignal reads a signal's name or number: TERM, SIGTERM, 15.
func ParseSignal(said string) (syscall.Signal, error) {
	s, err := signal.ParseSignal(said)
	if err != nil {
		return 0, fmt.Errorf("signal %q: write its name or number, such as TERM or 15: %w", said, errdefs.ErrInvalidArgument)
	}
	return s, nil
}

// Stop asks the process of a VM to end by its stop signal, and kills it after so long. Its disk stays. Negative: as the
// VM was made, else 10 seconds. One that does not run is left as it is.
func (c *Client) Stop(ctx context.Context, vm *nodev1.VM, after time.Duration) error {
	ctx = within(ctx, vm)
	if err := c.refusePod(ctx, vm, podStop); err != nil {
		return err
	}
	container, task, err := c.task(ctx, vm)
	if task == nil || err != nil {
		return err
	}
	labels, err := container.Labels(ctx)
	if err != nil {
		return c.containerdError("read the labels of VM "+c.name(vm), err)
	}
	if after < 0 {
		after = stopDefault
		if s, err := strconv.Atoi(labels[labelStop]); err == nil && s >= 0 {
			after = time.Duration(s) * time.Second
		}
	}
	if err := restarts(ctx, container, true); err != nil {
		return c.containerdError("tell the restart monitor of VM "+c.name(vm), err)
	}
	asked, err := containerd.GetStopSignal(ctx, container, syscall.SIGTERM)
	if err != nil {
		asked = syscall.SIGTERM
	}
	exit, err := task.Wait(ctx)
	if err != nil {
		return fmt.Errorf("stop VM %s: %w", c.name(vm), unwrapped(err))
	}
	return end(ctx, c.name(vm), task, exit, asked, after)
}

// end gives one signal after the other until the process has ended.
func end(ctx context.Context, name string, task containerd.Task, exit <-chan containerd.ExitStatus,
	asked syscall.Signal, after time.Duration) error {
	for _, s := range []syscall.Signal{asked, syscall.SIGKILL} {
		if err := task.Kill(ctx, s); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("stop VM %s: signal %d: %w", name, s, unwrapped(err))
		}
		timer := time.NewTimer(after)
		defer timer.Stop()
		select {
		case status := <-exit:
			if err := status.Error(); err != nil {
				return fmt.Errorf("stop VM %s: %w", name, unwrapped(err))
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("stop VM %s: it has the signal, and may still run: %w", name, ctx.Err())
		case <-timer.C:
			after = killTimeout
		}
	}
	return fmt.Errorf("stop VM %s: it does not end, %v after it was killed. To see why: godwit ps: %w", name,
		killTimeout, errdefs.ErrUnavailable)
}

// killTimeout is how long a VM may take to end that was killed: a VM that hangs is ended by its shim before that.
const killTimeout = time.Minute

// Kill sends a signal to the process of a VM that runs.
func (c *Client) Kill(ctx context.Context, vm *nodev1.VM, s syscall.Signal) error {
	ctx = within(ctx, vm)
	_, task, err := c.task(ctx, vm)
	if err != nil {
		return err
	}
	if task == nil {
		return stopped(c.name(vm))
	}
	if err := task.Kill(ctx, s); err != nil {
		return fmt.Errorf("signal %d to VM %s: %w", s, c.name(vm), unwrapped(err))
	}
	return nil
}

// task of a VM of this node that runs, or is paused; nil: none does.
func (c *Client) task(ctx context.Context, vm *nodev1.VM) (containerd.Container, containerd.Task, error) {
	container, err := c.loaded(ctx, vm)
	if err != nil {
		return nil, nil, err
	}
	task, status, err := c.taskOf(ctx, vm, container)
	switch {
	case err != nil:
		return nil, nil, err
	case task == nil:
		return container, nil, c.away(ctx, vm)
	case status == containerd.Stopped:
		return container, nil, nil
	}
	return container, task, nil
}

// taskOf is the task of a container, and how it is; nil: there is none.
func (c *Client) taskOf(ctx context.Context, vm *nodev1.VM, container containerd.Container,
) (containerd.Task, containerd.ProcessStatus, error) {
	task, err := container.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", c.containerdError("look for the task of VM "+c.name(vm), err)
	}
	status, err := task.Status(ctx)
	if err != nil {
		return nil, "", c.containerdError("ask for the status of VM "+c.name(vm), err)
	}
	return task, status.Status, nil
}
