package shim

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/snapshot/track"
)

// resetLook is the time between two looks at whether a guest has reset itself while its RAM comes. A variable for the
// tests.
var resetLook = 500 * time.Millisecond

// untilReset ends with track.ErrRemapped once a guest has reset itself, if its VMM maps RAM anew then: Cloud
// Hypervisor does, and no vCPU runs in between. The guest boots anew. What had not come is zero to it, as after
// power-on. Only a VM without an agent goes on after a reset.
func (f *filling) untilReset(ctx context.Context, ram *os.File) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	if !f.vm.spec().HasAgent() {
		watching.Go(func() {
			if f.await(ctx) != nil {
				return
			}
			for ; ctx.Err() == nil; retry.Sleep(ctx, resetLook) {
				if f.remapped(ram) {
					cancel(track.ErrRemapped)
				}
			}
		})
	}
	return ctx, func() { cancel(nil); watching.Wait() }
}

// remapped reports whether no page is waited for, although pages are to come. The end of a fill is no such moment.
func (f *filling) remapped(ram *os.File) bool {
	vm := f.vm
	vm.postcopy.halting.Lock()
	defer vm.postcopy.halting.Unlock()
	j := vm.journal.Load()
	if j.Postcopy == nil {
		return false
	}
	fault, _, err := vm.host.Lazy.Open(*j.Process, ram)
	if err == nil {
		err = fault.Close()
	}
	return errors.Is(err, track.ErrRemapped)
}

// abandon ends the fill of a guest that has reset itself. What its RAM is now the next snapshot has to read.
func (f *filling) abandon() error {
	vm := f.vm
	vm.postcopy.halting.Lock()
	defer vm.postcopy.halting.Unlock()
	if err := removeTables(vm.journal.Load()); err != nil {
		return err
	}
	if err := vm.write(func(j *journal.Journal) { j.Postcopy, j.Armed = nil, false }); err != nil {
		return err
	}
	f.came.Do(func() { close(f.here) })
	vm.log.Warn("the VMM waits for no page any more: the guest has reset itself", "snapshot", f.Digest,
		"progress", f.text())
	return nil
}
