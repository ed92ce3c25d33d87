package shim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/vmm"
)

// keepPause is the longest time between two looks at a NIC that may go late.
const keepPause = 30 * time.Second

// nicSet are the NICs of the VM on their taps; vm.mu guards attached and kind.
type nicSet struct {
	attached Attachment
	kind     string // what the guest is connected to
	leases   leases
	plugging sync.Mutex // held while NICs go or come
	ejects   uint64     // how often they went; plugging guards it
}

// unplug takes the NICs out of a running guest that is to sleep without them. Each is
// gone when the guest has let go: an eject under way is in no snapshot, and would
// be lost for ever. The journal says first that the guest may lack them.
func (vm *VM) unplug(ctx context.Context) error {
	if !vm.spec().Recycles() || vm.nic.attached == nil {
		return nil
	}
	vm.nic.plugging.Lock()
	defer vm.nic.plugging.Unlock()
	if err := vm.write(func(j *Journal) { j.Unplugged = true }); err != nil {
		return err
	}
	return vm.eject(ctx)
}

// eject is unplug without a word to the journal. vm.plugging is held.
func (vm *VM) eject(ctx context.Context) error {
	vm.nic.ejects++
	bound := time.Duration(vm.host.Config.Timeouts.NIC)
	soon, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for _, n := range vm.spec().NICs {
		err := vm.machine.RemoveNIC(soon, n.ID)
		switch {
		case errdefs.IsNotFound(err): // a wake could not plug it in
		case err != nil && soon.Err() != nil && ctx.Err() == nil:
			// Asking again would not help: the class is that of a refusal.
			return fmt.Errorf("the guest does not let go of NIC %s within %v (timeouts.nic); it needs a driver for PCI hot-plug: %v: %w", n.ID, bound, err, errdefs.ErrFailedPrecondition)
		case err != nil:
			return err
		}
	}
	return nil
}

// plugs is what a replug has found and done.
type plugs struct {
	added  int    // so many NICs were plugged in
	kept   bool   // some were there, of which an eject that was given up may still take one
	ejects uint64 // how often NICs had gone by then
}

// replug gives the guest what it lacks of its NICs, on taps that are up: a VMM may not
// bear another one.
func (vm *VM) replug(ctx context.Context) (done plugs, err error) {
	vm.nic.plugging.Lock()
	defer vm.nic.plugging.Unlock()
	done.ejects = vm.nic.ejects
	vm.mu.Lock()
	machine, nics, state := vm.machine, vm.nic.attached, vm.state
	vm.mu.Unlock()
	if nics == nil || !slices.Contains([]State{Starting, Running, Aborting}, state) { // a VM that has voted is silent
		return done, fmt.Errorf("plug NICs in: VM %s is %s: %w", vm.id, state, errdefs.ErrFailedPrecondition)
	}
	if err := nics.Up(ctx); err != nil {
		return done, err
	}
	var errs []error
	for i, n := range vm.spec().NICs {
		gone, err := machine.Ejected(ctx, n.ID)
		if err == nil && !gone {
			done.kept = true
			continue
		}
		if err == nil {
			vm.nic.leases.forget(n.MAC)
			err = plugIn(ctx, machine, nics, i, n)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done.added++
	}
	return done, errors.Join(errs...)
}

func plugIn(ctx context.Context, m vmm.Machine, nics Attachment, i int, n spec.NIC) error {
	tap, err := nics.Tap(i)
	if err != nil {
		return err
	}
	return m.AddNIC(ctx, vmm.NIC{ID: n.ID, Slot: n.Slot, MAC: n.MAC, MTU: n.MTU, Tap: tap})
}

// restoreNICs undoes unplug: the NICs are back, with their addresses. Where the guest
// had not let go in time it still may, so that the VM is watched from then on.
func (vm *VM) restoreNICs(ctx context.Context) error {
	if !vm.noted().Unplugged {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(vm.host.Config.Timeouts.NIC))
	defer cancel()
	done, err := vm.replug(ctx)
	if err == nil {
		err = vm.addressed(ctx)
	}
	if err == nil && !done.kept {
		err = vm.plugged(done)
	}
	return err
}

// plugged notes that the guest has all of its NICs, and which they are, unless a capture
// has taken them out since: to wait for an address takes time, and what that capture has
// noted must stand.
func (vm *VM) plugged(done plugs) error {
	vm.nic.plugging.Lock()
	defer vm.nic.plugging.Unlock()
	if vm.nic.ejects != done.ejects {
		return fmt.Errorf("note NICs: they have gone meanwhile: %w", errdefs.ErrFailedPrecondition)
	}
	vm.mu.Lock()
	p := vm.machine.Process()
	vm.mu.Unlock()
	return vm.write(func(j *Journal) { j.Unplugged, j.Process = false, &p })
}

// keepNICs goes on with what restoreNICs, or a wake, could not finish, for as long as the
// VM runs: the next capture, and the end, make it superfluous.
func (vm *VM) keepNICs(ctx context.Context) {
	owed := true // the addresses, until the guest has been seen to use them
	for pause := (retry.Backoff{Min: mendPause, Max: keepPause}); ; {
		if pause.Wait(ctx); ctx.Err() != nil {
			return
		}
		if !vm.is(Running) {
			continue
		}
		done, err := vm.replug(ctx)
		owed = owed || done.added > 0 // also where another one could not be plugged in yet
		if err == nil && owed {
			soon, cancel := context.WithTimeout(ctx, time.Duration(vm.host.Config.Timeouts.NIC))
			err = vm.addressed(soon)
			owed = err != nil
			cancel()
		}
		if done.added > 0 {
			vm.log.Info("NICs are plugged in again", "count", done.added, "error", err)
		}
		if err == nil && !done.kept {
			if err = vm.plugged(done); err == nil {
				return
			}
		}
		if err != nil {
			vm.log.Debug("keep NICs", "error", err)
		}
	}
}
