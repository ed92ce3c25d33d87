package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Run makes a VM and starts it. Its streams are those given; nil: its output goes to the node's log. The process is nil
// then. After an error, or an interrupt, nothing of the VM is left.
func (c *Client) Run(ctx context.Context, o VMOptions, streams *Streams) (*nodev1.VM, *Process, error) {
	vm, err := c.Create(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	p, err := c.runMade(ctx, vm, streams)
	if err != nil {
		return nil, nil, err
	}
	if streams == nil {
		return vm, nil, nil
	}
	return vm, p, nil
}

// runMade starts a VM that Run has made, or removes it.
func (c *Client) runMade(ctx context.Context, vm *nodev1.VM, streams *Streams) (*Process, error) {
	away, err := c.surelyAway(ctx, vm) // a VM of that name may have fallen asleep since, and would wake
	if err = cmp.Or(away, err); err != nil {
		return nil, errors.Join(err, c.discard(ctx, vm, false))
	}
	p, asked, err := c.startAsked(ctx, vm, streams)
	if err != nil {
		return nil, errors.Join(err, c.discard(ctx, vm, asked))
	}
	return p, nil
}

// discard removes a VM that never ran: its container and disk. Its record goes, too, if its shim was asked: only a shim
// makes one. Else the record of that name is of a VM that was stopped before, and has its snapshots.
func (c *Client) discard(ctx context.Context, vm *nodev1.VM, asked bool) error {
	ctx, cancel := cleaning(within(ctx, vm))
	defer cancel()
	ctr, err := c.Containerd()
	if err != nil {
		return err
	}
	container, err := ctr.LoadContainer(ctx, vm.GetId())
	if err == nil {
		err = container.Delete(ctx, containerd.WithSnapshotCleanup)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove what was made of VM %s: %w", c.name(vm), err)
	}
	if !asked {
		return nil
	}
	if node, err := c.Node(ctx); err == nil { // a record that stays is one of a VM that is stopped
		_, _ = node.Forget(ctx, &nodev1.ForgetRequest{Vm: vm})
	}
	return nil
}

// RemoveEnded removes a VM whose process has ended. One that sleeps, or has moved to another node, stays: left says
// where it is.
func (c *Client) RemoveEnded(ctx context.Context, vm *nodev1.VM) (left error, err error) {
	if left, err = c.surelyAway(ctx, vm); left != nil || err != nil {
		return left, err
	}
	_, err = c.Remove(ctx, vm, RemoveOptions{})
	return nil, err
}
