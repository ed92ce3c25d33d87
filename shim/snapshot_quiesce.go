package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/retry"
)

// quietBound is how long an operation waits for calls of containerd that are under way: as
// long as any of them waits for the guest. A variable for the tests.
var quietBound = guestBound

// errUnderWay says that a call is half done that an operation must not come into.
var errUnderWay = fmt.Errorf("a call is under way: %w", errdefs.ErrFailedPrecondition)

// quietInterval is between two tries.
const quietInterval = 5 * time.Millisecond

// quiet tries until no call is in the way, for a while. Then its error names what still is.
func quiet(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, quietBound)
	defer cancel()
	for {
		err := try()
		if !errors.Is(err, errUnderWay) || ctx.Err() != nil {
			return err
		}
		retry.Sleep(ctx, quietInterval)
	}
}

// call notes that something in the guest is being changed, until over is called: an answer
// that came to a VM on its way would reach nobody. vm.mu is held, and is not for over.
func (vm *VM) call() (over func()) {
	vm.op.calls++
	return func() {
		vm.mu.Lock()
		defer vm.mu.Unlock()
		vm.op.calls--
	}
}

// calling is call for who does not hold vm.mu.
func (vm *VM) calling() (over func()) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.call()
}

// passing is the class of a state that the VM should not be in: a call leaves some of them
// soon. vm.mu is held.
func (vm *VM) passing() error {
	switch vm.state {
	case Starting, Pausing, Resuming:
		return errUnderWay
	}
	return errdefs.ErrFailedPrecondition
}
