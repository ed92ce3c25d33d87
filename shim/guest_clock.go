package shim

import (
	"context"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/vmm"
)

// A VM that stands still has a wall clock that does so too, and is behind when it goes on. Its
// agent sets it forward then, as a part of the VM's traffic and behind everything that somebody
// waits for. (A wake tells the time in Restored.)

const (
	// clockTries is how often the guest is told the time behind one stop, if it takes longer
	// than clockSlack to answer: so far behind is what it was told by then.
	clockTries = 3
	clockSlack = 10 * time.Millisecond
)

// guestClock is what is known of it; the VM's lock guards failed.
type guestClock struct {
	stood  chan struct{} // holds one word: the VM has stood still, and its clock is behind
	failed string        // the last try to set it
}

// stoodStill says that the VM goes on that did not. Who lets its traffic flow hears of it.
func (vm *VM) stoodStill() {
	select {
	case vm.clock.stood <- struct{}{}:
	default: // it is said already
	}
}

// keepClock sets the guest's clock whenever the VM has stood still.
func (vm *VM) keepClock(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-vm.clock.stood:
		}
		for vm.guest() == nil && ctx.Err() == nil { // an adopted VM may have yet to meet it
			retry.Sleep(ctx, retryWait)
		}
		vm.setClock(ctx)
	}
}

// setClock tells the guest the time until it has heard of it soon. Whatever comes in between,
// a pause or an operation, tells it again behind its own end.
func (vm *VM) setClock(ctx context.Context) {
	var err error
	for range clockTries {
		if ctx.Err() != nil || vm.standsStill() {
			return
		}
		bound, cancel := context.WithTimeout(ctx, guestBound)
		begun := time.Now()
		var r *agentv1.SetClockResponse
		r, err = vm.guest().SetClock(bound, &agentv1.SetClockRequest{UnixNano: begun.UnixNano()})
		cancel()
		if by := time.Duration(r.GetBehindNano()); by > 0 {
			vm.log.Info("the guest's clock was set forward", "by", by)
		}
		if errdefs.IsNotImplemented(err) || err == nil && time.Since(begun) <= clockSlack {
			break
		}
	}
	if ctx.Err() == nil {
		vm.noteClock(err)
	}
}

// noteClock logs what went wrong, once if it is the same each time.
func (vm *VM) noteClock(err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	vm.mu.Lock()
	known := vm.clock.failed == said
	vm.clock.failed = said
	vm.mu.Unlock()
	switch {
	case known || err == nil:
	case errdefs.IsNotImplemented(err):
		vm.log.Info("the guest is of an earlier build: its clock stays behind by the time that it stands still")
	default:
		vm.log.Warn("set the guest's clock; it is tried again behind the next stop", "error", err)
	}
}

// heed hears of stops that nobody here has ordered, as of a VM whose disk is full on the host,
// until the VMM is gone.
func (vm *VM) heed(machine vmm.Machine) {
	stopped := false
	for {
		select {
		case <-machine.Done():
			return
		case e, ok := <-machine.Events():
			if !ok {
				<-machine.Done()
				return
			}
			switch {
			case e.Kind == vmm.Paused:
				stopped = vm.is(Running)
			case e.Kind == vmm.Resumed && stopped:
				stopped = false
				vm.stoodStill()
			}
		}
	}
}
