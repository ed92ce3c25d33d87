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
	j, state, c := vm.journal.Load(), vm.state, vm.op.capture
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
	switch state {
	case Stopped:
	case Created:
		vm.endCreated(ctx, killed)
	default:
		vm.ending.end(context.WithoutCancel(ctx), killed, time.Now())
	}
	if c != nil { // of an operation that is over
		return c.abort()
	}
	return nil
}
