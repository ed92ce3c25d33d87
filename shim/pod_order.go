package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/retry"
)

// expectBound is how long after a move was ordered this node may hear of it. A variable for the tests.
var expectBound = 10 * time.Second

// expectRetry is how often it is asked.
const expectRetry = 200 * time.Millisecond

// takeMove makes the move of a pod to this node what its Create is to do. The record is read anew for each order that
// this node has heard of: while the Create waited, the move may have ended, or its next attempt begun.
func (c *creation) takeMove(ctx context.Context) error {
	if c.host.Orders == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, expectBound)
	defer cancel()
	for {
		if err := c.checkGivenUp(); err != nil {
			return err
		}
		order, err := c.host.Orders.Expected(ctx, c.vm.name())
		if err == nil {
			err = c.readRecord(ctx)
		}
		op := c.record.GetOperation()
		switch {
		case err != nil && !errdefs.IsUnavailable(err):
			return fmt.Errorf("ask godwitd for the order of operation %s: %w", op.GetId(), err)
		case err == nil && !c.movesHere():
			return nil // Decide says what the record has come to
		case err == nil && order.GetOperation() == op.GetId() && order.GetAttempt() == op.GetAttempt():
			c.intent.Operation, c.intent.Attempt, c.intent.Stream = op.GetId(), op.GetAttempt(), order.GetStream()
			return c.checkGivenUp()
		}
		if retry.Sleep(ctx, expectRetry); ctx.Err() != nil {
			return fmt.Errorf("operation %s moves the pod here, and this node has not heard of it yet: try again: %w",
				op.GetId(), errors.Join(errdefs.ErrUnavailable, err))
		}
	}
}

func (c *creation) readRecord(ctx context.Context) error {
	rec, err := c.host.Records.Get(ctx, &nodev1.GetRequest{Vm: c.vm.name()})
	if err != nil {
		return unavailable(err)
	}
	c.record = rec
	return nil
}

// movesHere reports whether the record has a move to this node that may still come.
func (c *creation) movesHere() bool {
	op := c.record.GetOperation()
	return op.GetKind() == nodev1.Kind_KIND_MIGRATE && op.GetDestination() == c.host.Config.Node &&
		op.GetPhase() < nodev1.Phase_PHASE_COMMITTED
}

// checkGivenUp refuses the attempt of the record if this node has written down that it never runs here.
func (c *creation) checkGivenUp() error {
	op := c.record.GetOperation()
	if !c.fenced(op.GetId(), op.GetAttempt()) {
		return nil
	}
	return fmt.Errorf("operation %s, attempt %d: a sandbox that waited for the pod here before was given up: order "+
		"the move again: %w", op.GetId(), op.GetAttempt(), errdefs.ErrFailedPrecondition)
}
