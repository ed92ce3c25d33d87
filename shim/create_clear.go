package shim

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/steps"
)

// clear frees what an earlier incarnation left, and refuses to touch one that an
// operation holds.
func (c *creation) clear(ctx context.Context, u *steps.Undo) error {
	old, err := claimJournal(c.vm.dir, func(old *journal.Journal) error { return c.clearable(ctx, old) })
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.vm.log.Info("clear what an earlier task left", "phase", old.Phase)
	// A fence that stays is this shim's until its own journal stands: a successor that took it
	// would serve, and then remove, the socket of this task.
	u.Add("let go of the fence", func(context.Context) error { return releaseFence(c.vm.dir, old.Shim) })
	return reclaimAs(ctx, c.host, c.vm.dir, old, old.Shim)
}

// checkFence refuses an attempt that was given up here. A pod has its order later: see takeMove.
func (c *creation) checkFence(old *journal.Journal) error {
	if old.Phase != journal.Fenced {
		return nil
	}
	c.fence = &machinev1.Ref{Operation: old.Operation, Attempt: old.Attempt}
	if c.intent.Set() && c.fenced(c.intent.Operation, c.intent.Attempt) {
		return fmt.Errorf("attempt %d of operation %s was given up here: %w", c.intent.Attempt, c.intent.Operation,
			errdefs.ErrFailedPrecondition)
	}
	return nil
}

// fenced reports whether this node has given up to run an attempt of an operation.
func (c *creation) fenced(operation string, attempt uint32) bool {
	return c.fence.GetOperation() == operation && attempt <= c.fence.GetAttempt()
}

// clearable also ends the successor of a shim that does nothing any more but answer for
// a fence or free what is left: the journal is this task's from here on.
func (c *creation) clearable(ctx context.Context, old *journal.Journal) error {
	alive, err := shimOf(old).Alive()
	if err != nil {
		return fmt.Errorf("an earlier task of the VM may have a shim, and nothing of it is touched: %w", err)
	}
	if alive {
		if err := c.otherSandbox(old); err != nil {
			return err
		}
	}
	if old.Phase.Open() && (!old.Phase.Destination() || alive) {
		return fmt.Errorf("operation %s holds the VM's earlier task in %s: %w", old.Operation, old.Phase,
			errdefs.ErrFailedPrecondition)
	}
	if err := c.checkFence(old); err != nil {
		return err
	}
	wakes, err := wakeCommitted(old)
	if err != nil {
		return err
	}
	if wakes && !alive && c.host.asks() {
		return fmt.Errorf("the VM wakes here, and its shim has died: its successor takes operation %s to its end: %w",
			old.Operation, errdefs.ErrFailedPrecondition)
	}
	if old.Shim.PID == os.Getpid() || !alive {
		return nil
	}
	runs, err := vmmOf(old).Alive()
	if err != nil {
		return fmt.Errorf("the VM may run on here without a task of containerd, under process %d: %w", old.Shim.PID, err)
	}
	if old.Phase == journal.Own && runs {
		return fmt.Errorf("the VM runs on here without a task of containerd, under process %d: %w", old.Shim.PID,
			errdefs.ErrFailedPrecondition)
	}
	return shimOf(old).Kill(ctx)
}
