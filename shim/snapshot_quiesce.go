package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/retry"
)

// longestBusy is how long an operation waits for calls that are under way: longer than any of them waits for the guest,
// also one that began with the operation.
const longestBusy = guestBound + time.Second

// busyBound is longestBusy, and less in tests.
var busyBound = longestBusy

// errBusy says that a call is half done that an operation must not come into.
var errBusy = fmt.Errorf("a call is under way: %w", errdefs.ErrFailedPrecondition)

// busyInterval is between two tries.
const busyInterval = 5 * time.Millisecond

// whileBusy tries until no call is in the way, for a while. Then its error names what still is.
func whileBusy(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, busyBound)
	defer cancel()
	for {
		err := try()
		if !errors.Is(err, errBusy) || ctx.Err() != nil {
			return err
		}
		retry.Sleep(ctx, busyInterval)
	}
}

// call notes that something in the guest is being changed, until over is called: an answer that came to a VM on its way
// would reach no caller. vm.mu is held, and is not for over.
func (vm *VM) call() (over func()) {
	vm.op.calls++
	return func() {
		vm.mu.Lock()
		defer vm.mu.Unlock()
		vm.op.calls--
	}
}

// lockAndCall is call for who does not hold vm.mu.
func (vm *VM) lockAndCall() (over func()) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.call()
}

// wrongState is the class of a state that the VM should not be in: a call leaves some of them
// soon. vm.mu is held.
func (vm *VM) wrongState() error {
	switch vm.state {
	case Starting, Pausing, Resuming:
		return errBusy
	}
	return errdefs.ErrFailedPrecondition
}
