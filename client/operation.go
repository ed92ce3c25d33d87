package client

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"godwit.dev/godwit/api/moves"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// Follow hears how far an operation is, some times a second. nil: it is not told.
type Follow func(*nodev1.StatusResponse)

// Hibernate puts a VM to sleep in the store, and returns when the snapshot owns it: GetOperation().GetDigest() of
// the answer. request.Vm is set by it; nil: nothing special is asked for. The operation belongs to godwitd: it goes on
// after ctx has ended, and over a restart.
func (c *Client) Hibernate(ctx context.Context, vm *nodev1.VM, request *nodev1.HibernateRequest,
	tell Follow) (*nodev1.StatusResponse, error) {
	if request == nil {
		request = &nodev1.HibernateRequest{}
	}
	request.Vm = vm
	node, err := c.Node(ctx)
	if err != nil {
		return nil, err
	}
	status, err := node.Hibernate(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("hibernate VM %s: %w", c.name(vm), record.FromWire(err))
	}
	return c.follow(ctx, status, tell, node.Status)
}

// Checkpoint takes a snapshot of a VM that goes on, and returns when it is durable. As Hibernate otherwise.
func (c *Client) Checkpoint(ctx context.Context, vm *nodev1.VM, request *nodev1.CheckpointRequest,
	tell Follow) (*nodev1.StatusResponse, error) {
	if request == nil {
		request = &nodev1.CheckpointRequest{}
	}
	request.Vm = vm
	node, err := c.Node(ctx)
	if err != nil {
		return nil, err
	}
	status, err := node.Checkpoint(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("checkpoint of VM %s: %w", c.name(vm), record.FromWire(err))
	}
	return c.follow(ctx, status, tell, node.Status)
}

// Wake wakes a VM on a node, or for "" where it fits, and returns when it runs: on GetOperation().GetDestination()
// of the answer. As Hibernate otherwise.
func (c *Client) Wake(ctx context.Context, vm *nodev1.VM, on string, tell Follow) (*nodev1.StatusResponse, error) {
	node, err := c.Node(ctx)
	if err != nil {
		return nil, err
	}
	client, err := c.Moves()
	if err != nil {
		return nil, err
	}
	// The client repeats a call whose connection breaks: the id makes it the same order.
	status, err := client.Wake(ctx, &nodev1.WakeOrder{On: on,
		Wake: &nodev1.WakeRequest{Vm: vm, Operation: uuid.NewString()}})
	if err != nil {
		return nil, fmt.Errorf("wake VM %s: %w", c.name(vm), record.FromWire(err))
	}
	return c.follow(ctx, status, tell, node.Status)
}

// Migrate moves a VM that runs to another node, and returns when it runs there. request.Vm is set by it; nil: to the
// node with the most room, live if that works. As Hibernate otherwise.
func (c *Client) Migrate(ctx context.Context, vm *nodev1.VM, request *nodev1.MigrateRequest,
	tell Follow) (*nodev1.StatusResponse, error) {
	if request == nil {
		request = &nodev1.MigrateRequest{Mode: "auto"}
	}
	if request.Vm = vm; request.GetOperation() == "" {
		request.Operation = uuid.NewString()
	}
	if err := moves.Check(request); err != nil {
		return nil, fmt.Errorf("move VM %s: %w", c.name(vm), err)
	}
	client, err := c.Moves()
	if err != nil {
		return nil, err
	}
	status, err := client.Migrate(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("move VM %s: %w", c.name(vm), err)
	}
	return c.follow(ctx, status, tell, client.Get)
}

// Watch hears the events of moves after the one of that id, the oldest that is known first, and then as they come, each
// once. It returns the error of do, or of ctx. While godwitd is started again it waits.
func (c *Client) Watch(ctx context.Context, after uint64, do func(*nodev1.MoveEvent) error) error {
	client, err := c.Moves()
	if err != nil {
		return err
	}
	f := &moves.Follower{From: client, Do: do}
	return f.Follow(ctx, &nodev1.WatchRequest{After: after})
}

// follow waits until an operation is settled. godwitd has answered before: one that is away is waited for.
func (c *Client) follow(ctx context.Context, status *nodev1.StatusResponse, tell Follow,
	ask func(context.Context, *nodev1.StatusRequest) (*nodev1.StatusResponse, error)) (*nodev1.StatusResponse, error) {
	id, patience := status.GetOperation().GetId(), moves.Patience{Met: true}
	status, err := patience.Settle(ctx, status, ask, tell)
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, fmt.Errorf("operation %s goes on in godwitd: %w", id, ctx.Err())
	case err != nil:
		return nil, fmt.Errorf("follow operation %s: %w", id, err)
	}
	return status, ending(status.GetOperation())
}

// ending is why an operation did not succeed; its class is that of the reason.
func ending(op *nodev1.Operation) error {
	if op.GetPhase() == nodev1.Phase_PHASE_SUCCEEDED {
		return nil
	}
	class := record.ClassOf(op.GetClass())
	lost := op.GetPhase() == nodev1.Phase_PHASE_LOST_AT_DEST || op.GetPhase() == nodev1.Phase_PHASE_LOST_AT_SRC
	if class == nil || lost {
		class = errdefs.ErrAborted
	}
	what := "the VM is where it was"
	if lost {
		what = "the VM has ended, and its last snapshot is kept"
	}
	return fmt.Errorf("operation %s: %s; %s: %w", op.GetId(),
		strings.TrimSuffix(op.GetReason(), ": "+class.Error()), what, class)
}
