package engine

import (
	"context"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// lost settles an operation whose VM has ended after the commit. rec is its record as it stood there. Where nothing
// of the VM is left, it has no owner from then on, and what is left of it elsewhere may run. The shim would have
// said so as it went, but was refused while the operation was open. What fails after the first word the node does
// itself, in its next round. In an old copy of the records a wake of which nothing is left may be over for long: its VM
// sleeps in a snapshot that they do not name. While any node contradicts them it goes on, and no claim is given up.
func (c *core) lost(ctx context.Context, rec *nodev1.Record, phase nodev1.Phase, reason string) error {
	if rec.GetOperation().GetKind() == nodev1.Kind_KIND_WAKE && c.left(ctx, rec) {
		if err := c.vouched(ctx, nil); err != nil {
			return err
		}
	}
	if err := c.finish(ctx, rec.GetOperation(), phase, reason, false); err != nil {
		return err
	}
	// Asked only now: a shim that goes from here on says it itself.
	if c.left(ctx, rec) && c.vouched(ctx, nil) == nil {
		_ = c.endOwnership(ctx, rec, reason)
	}
	return nil
}

// left reports whether the node that owns a VM says that nothing of it is there any more.
func (c *core) left(ctx context.Context, rec *nodev1.Record) bool {
	op := rec.GetOperation()
	if op.GetKind() != nodev1.Kind_KIND_MIGRATE {
		return c.nothing(ctx, rec.GetVm())
	}
	state, err := ask(ctx, c, rec.GetOwner().GetNode(), nodev1.PeerService.Query, peerRef(op))
	return err == nil && !state.GetKnown()
}

// nothing is left for a VM of this node.
func (c *core) nothing(ctx context.Context, vm *nodev1.VM) bool {
	_, err := c.Observer.Query(ctx, vm)
	return errdefs.IsNotFound(err)
}

// endOwnership gives up the claim of the node that rec names, and no later one.
func (c *core) endOwnership(ctx context.Context, rec *nodev1.Record, reason string) error {
	_, err := c.Records.Disown(ctx, &nodev1.DisownRequest{
		Vm: rec.GetVm(), Node: rec.GetOwner().GetNode(), Generation: rec.GetGeneration(), Uid: rec.GetUid(),
	})
	if err == nil {
		c.Events.Event(ctx, Event{Type: OwnershipEnded, VM: rec.GetVm(), Reason: reason})
	}
	return err
}
