package cloudhypervisor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
)

// Resume lets the vCPUs run, for the first time too.
func (m *Machine) Resume(ctx context.Context) error {
	var told atomic.Bool
	err := m.change(ctx, func(ctx context.Context, send sender) error {
		return m.resume(ctx, send, func(call func(context.Context) error) error {
			told.Store(true)
			err := send(call)
			if errors.Is(err, errUnsent) {
				told.Store(false)
			}
			return err
		})
	})
	if err == nil {
		return nil
	}
	if !told.Load() {
		err = fmt.Errorf("%w: %w", vmm.ErrNotResumed, err)
	}
	return fmt.Errorf("resume VM: %w", err)
}

// resume is the work of Resume, which sends with run what a vCPU may run by.
func (m *Machine) resume(ctx context.Context, send, run sender) error {
	if m.standing {
		m.standing = false
		return run(m.api.resume)
	}
	state, err := m.state(ctx)
	if err != nil {
		return err
	}
	switch {
	case state == stateRunning && m.torn:
		if err := m.pause(send); err != nil {
			return fmt.Errorf("end a pause that was refused half way: %w", err)
		}
		m.standing = false
		return run(m.api.resume)
	case state == stateRunning:
		return nil
	case state == statePaused && m.plan == nil:
		m.torn = false
		return run(m.api.resume)
	case state == stateCreated:
		err := run(m.api.boot)
		if errors.Is(err, errdefs.ErrFailedPrecondition) {
			err = fmt.Errorf("%w%s", err, logTail(m.Process().Dir))
		}
		return errors.Join(err, m.booted())
	}
	return fmt.Errorf("VM is %q, its state is not loaded: %w", state, errdefs.ErrFailedPrecondition)
}

// Pause stops the vCPUs and waits for the requests that devices are working on. A VM
// that has never run stands still as it is.
func (m *Machine) Pause(ctx context.Context) error {
	err := m.change(ctx, func(ctx context.Context, send sender) error {
		refused := m.pause(send)
		if !isRefusal(refused) {
			return refused
		}
		state, err := m.state(ctx)
		switch {
		case err != nil:
			return errors.Join(refused, err)
		case state == "":
			return fmt.Errorf("there is no VM: %w", errdefs.ErrFailedPrecondition)
		case state == stateRunning:
			return refused
		}
		m.torn = false
		return nil
	})
	if err != nil {
		return fmt.Errorf("pause VM: %w", err)
	}
	return nil
}

// pause sends vm.pause. The VMM tells the vCPUs first that they are to stand still, and takes nothing back if a later
// step fails: one of them did not answer within a second, say. Only a resume of a VM that is Paused lets them go on.
func (m *Machine) pause(send sender) error {
	err := send(func(ctx context.Context) error {
		m.torn = true
		return m.api.pause(ctx)
	})
	if err == nil {
		m.standing, m.torn = true, false
	}
	return err
}
