package client

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// EndedError says that a VM has ended, and that what was to follow has failed.
type EndedError struct {
	What   string // a sentence
	Remedy string // what to do; empty: Err says it
	Err    error
}

func (e *EndedError) Error() string { return e.What + " " + e.Err.Error() + " " + e.Remedy }
func (e *EndedError) Unwrap() error { return e.Err }

// Restart stops a VM and starts it again. Where it is known before that it would not start, it is not stopped.
func (c *Client) Restart(ctx context.Context, vm *nodev1.VM, after time.Duration) error {
	if err := c.mayEnd(ctx, vm, restarting); err != nil {
		return err
	}
	if err := c.Stop(ctx, vm, after); err != nil {
		return err
	}
	if _, err := c.Start(ctx, vm, nil); err != nil {
		return &EndedError{What: c.name(vm) + " has ended, and does not run again.",
			Remedy: fmt.Sprintf("To try again: godwit start %s.", c.name(vm)), Err: err}
	}
	return nil
}

// mayEnd asks, before a VM of this node is ended, whether its record lets what follows happen: a VM without a record is
// free. That nothing was answered is an error, and the VM runs on.
func (c *Client) mayEnd(ctx context.Context, vm *nodev1.VM, verb string) error {
	removes := verb == removing
	rec, err := c.recordedFor(ctx, &nodev1.GetRequest{Vm: vm, Changes: true, Removes: removes})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("%s VM %s: it was not ended: %w", verb, c.name(vm), err)
	}
	here, owner := c.here(ctx), rec.GetOwner()
	if rec.GetRivals() || rec.GetOperation() != nil ||
		owner.GetNode() != "" && here != "" && owner.GetNode() != here ||
		!removes && (record.IsLost(rec) || owner.GetDigest() != "" || leaves(rec)) {
		p := Held(rec, c.name(vm), here)
		p.Cause = errdefs.ErrFailedPrecondition
		return p
	}
	return nil
}

// leaves reports whether a VM is removed once its last state is stored. Its end would call that off.
func leaves(rec *nodev1.Record) bool {
	return rec.GetDeletion() != nil && !record.Stuck(rec.GetDeletion())
}

// What follows the end of a VM.
const (
	restarting = "restart"
	removing   = "remove"
)
