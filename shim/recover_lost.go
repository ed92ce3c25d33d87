package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/shim/journal"
)

// fenceLost ends a VM that its record has given to somebody else while this node was called
// lost. The record is asked here too: the order may be older than what it says by now, and a
// record that cannot be read ends nothing.
func (vm *VM) fenceLost(ctx context.Context, generation uint64, reason string) error {
	refuse := func(why string, args ...any) error {
		return fmt.Errorf("end VM %s for generation %d: %s: %w", vm.id, generation, fmt.Sprintf(why, args...),
			errdefs.ErrFailedPrecondition)
	}
	if vm.host.Records == nil {
		return refuse("this node keeps no records")
	}
	bound, cancel := context.WithTimeout(ctx, time.Duration(vm.host.Config.Timeouts.Daemon))
	defer cancel()
	rec, err := vm.host.Records.Get(bound, &nodev1.GetRequest{Vm: vm.name()})
	if err != nil {
		return unavailable(err)
	}
	vm.mu.Lock()
	j, c := vm.journal.Load(), vm.op.capture
	switch op := rec.GetOperation(); {
	case j.Phase != journal.Own && j.Phase != journal.Sending:
		err = refuse("it is %s", j.Phase)
	case rec.GetUid() != j.Spec.UID:
		err = refuse("its record is of another VM of that name")
	case j.Generation >= generation && !record.Predates(rec, j.Generation) || rec.GetGeneration() < generation ||
		rec.GetRivals():
		err = refuse("it runs under %d, its record is at %d", j.Generation, rec.GetGeneration())
	case rec.GetOwner().GetNode() == vm.host.Config.Node, op != nil && op.GetId() == j.Operation &&
		j.Phase == journal.Sending:
		err = refuse("it is this node's, or on its way from here")
	}
	vm.mu.Unlock()
	if err != nil {
		return err
	}
	vm.log.Error("end a VM that is somebody else's by now", "owner", rec.GetOwner().String(), "generation",
		rec.GetGeneration(), "ran_under", j.Generation, "reason", reason)
	// First, for the process that gives its network back, also one that comes after this shim's death: its addresses are
	// in use.
	// Whether the disk takes it or not: two that run are worse.
	_ = vm.journal.owe("that the VM is somebody else's by now", func(j *journal.Journal) { j.Reassigned = true })
	if err := vm.ending.fromAnyState(ctx); err != nil {
		return fmt.Errorf("end VM %s for generation %d: %w", vm.id, generation, err)
	}
	if c != nil { // of an operation that is over
		return c.abort()
	}
	return nil
}

// fromAnyState returns once the VM has ended. A Start that comes in between, or is under way, may launch the VMM
// after one look at the state: it is aborted, and its end waited for.
func (e *ending) fromAnyState(ctx context.Context) error {
	vm := e.vm
	for {
		vm.mu.Lock()
		state, over := vm.state, vm.owner.startOver
		if state == Starting && over != nil {
			vm.owner.abortStart() // under the lock: Start looks at it there before it succeeds
		}
		vm.mu.Unlock()
		switch {
		case state == Stopped, state == Deleting, state == Deleted:
			return nil
		case state == Created:
			vm.endCreated(ctx, killed) // where a Start came first, that is what the next round ends
		case state == Starting && over != nil:
			if _, err := wait(over)(ctx); err != nil {
				return fmt.Errorf("its start is not over yet: %w: %w", err, errdefs.ErrUnavailable)
			}
		case state == New, state == Creating, state == Starting: // one that a successor takes over has no end yet
			return fmt.Errorf("it is %s: %w", state, errdefs.ErrUnavailable)
		default:
			e.end(context.WithoutCancel(ctx), killed, time.Now())
			return nil
		}
	}
}
