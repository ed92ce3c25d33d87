package cloudhypervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// patience is how long the answer to a call that changes the VM is waited for: for as long as its
// caller meant to, and some time if that one leaves. A variable for the tests.
var patience = func(ctx context.Context) (context.Context, context.CancelFunc) {
	bound := commandTimeout
	if end, ok := ctx.Deadline(); ok {
		bound = max(bound, time.Until(end))
	}
	return context.WithTimeout(context.WithoutCancel(ctx), bound)
}

// sender makes one call that changes the VM, unless the caller has left before it. A caller that
// leaves in the midst of it does not end it: what the VMM does can not be taken back, only followed.
type sender func(call func(context.Context) error) error

// errUnsent is in the error of a sender that has sent nothing.
var errUnsent = errors.New("nothing is sent any more")

// change does work on the VM, one piece after the other. ctx bounds the wait for one's turn, what work asks, and how
// long the caller waits for what was sent. The latter is followed to its end all the same: the next one in turn finds a
// VM of which is known what it does.
func (m *Machine) change(ctx context.Context, work func(context.Context, sender) error) error {
	ctx, cancel := bounded(ctx)
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		cancel()
		return fmt.Errorf("another call is not answered: %w", ctx.Err())
	}
	over := make(chan error, 2) // the work, or before it the caller's patience
	send := func(call func(context.Context) error) error {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: %w", errUnsent, err)
		}
		stop := context.AfterFunc(ctx, func() { over <- fmt.Errorf("no answer yet: %w", ctx.Err()) })
		defer stop()
		return m.callToEnd(ctx, call)
	}
	go func() {
		err := m.checkKnown(ctx)
		if err == nil {
			err = work(ctx, send)
		}
		cancel()
		<-m.turn
		over <- err
	}()
	return <-over
}

// callToEnd makes a call and waits for its end, which is not that of ctx; m.turn is held.
func (m *Machine) callToEnd(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := patience(ctx)
	defer cancel()
	err := call(ctx)
	if err != nil && !isRefusal(err) {
		m.lost, m.standing = true, false
	}
	return err
}

// checkKnown fails after a call that was not answered, until the VMM answers again: it works on one call after the
// other, so that it is through with that one then, and says what the VM does. m.turn is held.
func (m *Machine) checkKnown(ctx context.Context) error {
	if !m.lost {
		return nil
	}
	state, err := m.state(ctx)
	if err != nil {
		return fmt.Errorf("an earlier call was not answered, the VM can only be killed: %w: %w", errdefs.ErrUnavailable, err)
	}
	m.log.Warn("the VMM answers again", "state", state)
	m.lost = false
	if state == "" || state == stateCreated {
		return nil
	}
	return m.booted() // it may have been the boot
}
