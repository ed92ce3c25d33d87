package shim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/vmm"
)

// keepPause is the longest time between two looks at a NIC that may go late.
const keepPause = 30 * time.Second

// plugs is what a replug has found and done.
type plugs struct {
	added  int    // so many NICs were plugged in
	kept   bool   // some were there, of which an eject that was given up may still take one
	ejects uint64 // how often NICs had gone by then
}

// replug gives the guest what it lacks of its NICs, on taps that are up: a VMM may not
// bear another one.
func (n *nicSet) replug(ctx context.Context) (done plugs, err error) {
	n.plugging.Lock()
	defer n.plugging.Unlock()
	done.ejects = n.ejects
	machine, state := n.vm.current()
	nics := n.wiring()
	if nics == nil || !slices.Contains([]State{Starting, Running, Aborting}, state) { // a VM that has voted is silent
		return done, fmt.Errorf("plug NICs in: the VM is %s: %w", state, errdefs.ErrFailedPrecondition)
	}
	if err := nics.Up(ctx); err != nil {
		return done, err
	}
	var errs []error
	for i, nic := range n.spec().NICs {
		gone, err := machine.Ejected(ctx, nic.ID)
		if err == nil && !gone {
			done.kept = true
			continue
		}
		if err == nil {
			n.leases.forget(nic.MAC)
			err = plugIn(ctx, machine, nics, i, nic)
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

// restore undoes unplug: the NICs are back, with their addresses. Where the guest
// had not let go in time it still may, so that the VM is watched from then on.
func (n *nicSet) restore(ctx context.Context) error {
	if !n.journal.Load().Unplugged {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.vm.nicBound())
	defer cancel()
	done, err := n.replug(ctx)
	if err == nil {
		err = n.addressed(ctx)
	}
	if err == nil && !done.kept {
		err = n.plugged(done)
	}
	return err
}

// plugged notes that the guest has all of its NICs, and which they are, unless a capture
// has taken them out since: to wait for an address takes time, and what that capture has
// noted must stand.
func (n *nicSet) plugged(done plugs) error {
	n.plugging.Lock()
	defer n.plugging.Unlock()
	if n.ejects != done.ejects {
		return fmt.Errorf("note NICs: they have gone meanwhile: %w", errdefs.ErrFailedPrecondition)
	}
	machine, _ := n.vm.current()
	p := machine.Process()
	return n.vm.write(func(j *journal.Journal) { j.Unplugged, j.Process = false, &p })
}

// keep goes on with what restore, or a wake, could not finish, for as long as the
// VM runs: the next capture, and the end, make it superfluous.
func (n *nicSet) keep(ctx context.Context) {
	unconfirmed := true // the addresses, until the guest has been seen to use them
	for pause := (retry.Backoff{Min: resumeRetry, Max: keepPause}); ; {
		if pause.Wait(ctx); ctx.Err() != nil {
			return
		}
		if _, state := n.vm.current(); state != Running {
			continue
		}
		done, err := n.replug(ctx)
		unconfirmed = unconfirmed || done.added > 0 // also where another one could not be plugged in yet
		if err == nil && unconfirmed {
			soon, cancel := context.WithTimeout(ctx, n.vm.nicBound())
			err = n.addressed(soon)
			unconfirmed = err != nil
			cancel()
		}
		if done.added > 0 {
			n.log.Info("NICs are plugged in again", "count", done.added, "error", err)
		}
		if err == nil && !done.kept {
			if err = n.plugged(done); err == nil {
				return
			}
		}
		if err != nil {
			n.log.Debug("keep NICs", "error", err)
		}
	}
}
