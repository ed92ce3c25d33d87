package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/emptypb"

	"godwit.dev/godwit/internal/retry"
)

type emptyResponse = emptypb.Empty

// guestBound is how long a call of containerd waits for the guest, or for the VMM.
const guestBound = 10 * time.Second

// mutable refuses a changing call while an operation holds the VM; vm.mu is held.
func (vm *VM) mutable() error {
	if vm.isHeld() {
		if r := vm.op.resuming; r != nil && r.late.Err() != nil {
			return fmt.Errorf("an operation gives VM %s back, and its VMM does not resume it. To end the VM: SIGKILL for its "+
				"process, as by godwit kill: %w", vm.id, errdefs.ErrFailedPrecondition)
		}
		return fmt.Errorf("operation %s holds VM %s (%s): %w", vm.journal.Load().Operation, vm.id, vm.state,
			errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Pause stops the vCPUs.
func (s *Service) Pause(ctx context.Context, r *taskapi.PauseRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(t *Task) (*emptyResponse, error) {
		vm := t.vm
		if err := vm.pod.refuse("pause"); err != nil {
			return nil, err
		}
		defer vm.postcopy.lockPause()()
		if err := vm.change(Running, Pausing); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, guestBound)
		defer cancel()
		err := vm.machine.Pause(ctx)
		if err != nil {
			vm.unpause()
			return nil, fmt.Errorf("pause VM %s: %w", vm.id, err)
		}
		return &emptyResponse{}, vm.finishTransition(Pausing, Paused, &events.TaskPaused{ContainerID: t.id})
	})
}

// Bounds of a Pause that failed: how long it waits to be taken back, and the longest time between two tries of that.
const (
	unpauseBound   = time.Second
	longestUnpause = 5 * time.Second
)

// unpause takes back a Pause that failed: the VMM may have done it all the same, or do it
// as soon as it answers again. Until it says that the VM runs the task is pausing, and
// can be killed.
func (vm *VM) unpause() {
	ctx, cancel := context.WithTimeout(vm.life, unpauseBound)
	defer cancel()
	said := vm.tryResume(ctx)
	if said == nil {
		return
	}
	vm.log.Warn("take back a pause that failed", "error", said)
	go func() {
		for pause := (retry.Backoff{Min: retryWait, Max: longestUnpause}); vm.inState(Pausing) && vm.life.Err() == nil; {
			bound, cancel := context.WithTimeout(vm.life, guestBound)
			err := vm.tryResume(bound)
			cancel()
			if err == nil {
				return
			}
			if err.Error() != said.Error() { // it may take for ever
				vm.log.Warn("take back a pause that failed", "error", err)
			}
			said = err
			pause.Wait(vm.life)
		}
	}()
}

// tryResume is one try of unpause.
func (vm *VM) tryResume(ctx context.Context) error {
	if err := resumeVMM(ctx, vm); err != nil {
		return err
	}
	defer vm.lockAndCall()()
	if vm.finishTransition(Pausing, Running, nil) == nil {
		vm.clock.noteResumed()
		vm.owner.deliver(vm.life)
		vm.owner.resizeAll(vm.life)
		forgetAfterPause(vm)
	}
	return nil
}

// Resume undoes Pause. What came for the processes meanwhile reaches them.
func (s *Service) Resume(ctx context.Context, r *taskapi.ResumeRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(t *Task) (*emptyResponse, error) {
		vm := t.vm
		if err := vm.pod.refuse("resume"); err != nil {
			return nil, err
		}
		defer vm.postcopy.lockPause()()
		if err := vm.change(Paused, Resuming); err != nil {
			return nil, err
		}
		bound, cancel := context.WithTimeout(ctx, guestBound)
		defer cancel()
		if err := resumeVMM(bound, vm); err != nil {
			vm.leave(Resuming, Paused)
			return nil, fmt.Errorf("resume VM %s: %w", vm.id, err)
		}
		defer vm.lockAndCall()() // until what came meanwhile has reached the guest
		if err := vm.finishTransition(Resuming, Running, &events.TaskResumed{ContainerID: t.id}); err != nil {
			return nil, err
		}
		vm.clock.noteResumed()
		t.deliver(context.WithoutCancel(ctx)) // the VM runs, however long the caller waits
		t.resizeAll(ctx)
		forgetAfterPause(vm)
		return &emptyResponse{}, nil
	})
}

// change enters next from one state, naming the operation that may be in the way.
func (vm *VM) change(from, next State) error {
	vm.mu.Lock()
	err := vm.mutable()
	vm.mu.Unlock()
	if err != nil {
		return err
	}
	return vm.enterFrom(from, next)
}

// finishTransition ends a transitional state and tells it, unless the VM has ended meanwhile: nothing is told of a task
// after its exit.
func (vm *VM) finishTransition(from, next State, event any) error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.state != from {
		return fmt.Errorf("VM %s is %s: %w", vm.id, vm.state, errdefs.ErrFailedPrecondition)
	}
	err := vm.setState(next)
	if err == nil && event != nil {
		vm.events.Send(event)
	}
	return err
}

// CloseIO ends stdin after what was written to it. A client may be so fast that the process does not run yet.
func (s *Service) CloseIO(_ context.Context, r *taskapi.CloseIORequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(t *Task) (*emptyResponse, error) {
		vm := t.vm
		vm.mu.Lock()
		defer vm.mu.Unlock()
		p, err := t.find(r.GetExecID())
		if err != nil {
			return nil, err
		}
		if r.GetStdin() {
			if vm.stdioFixed() { // what would end it stands where it stood in the pause
				return nil, vm.mutable()
			}
			p.noStdin = true
			if p.pump != nil {
				p.pump.CloseStdin()
			}
		}
		return &emptyResponse{}, nil
	})
}

// ResizePty also works between Create and Start, and during a pause: the size is kept
// until the guest can be told.
func (s *Service) ResizePty(ctx context.Context, r *taskapi.ResizePtyRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(t *Task) (*emptyResponse, error) {
		vm := t.vm
		vm.mu.Lock()
		p, err := t.find(r.GetExecID())
		if err == nil {
			err = vm.mutable()
		}
		if err == nil && p.exited {
			err = fmt.Errorf("resize terminal of a process that has ended: %w", errdefs.ErrFailedPrecondition)
		}
		if err == nil {
			p.width, p.height = r.GetWidth(), r.GetHeight()
		}
		tell := err == nil && p.started && vm.state == Running
		over := vm.call()
		vm.mu.Unlock()
		defer over()
		if tell {
			t.resize(ctx, p)
		}
		return &emptyResponse{}, err
	})
}

// resizeAll tells the sizes that were set during a pause.
func (t *Task) resizeAll(ctx context.Context) {
	vm := t.vm
	vm.mu.Lock()
	all := vm.processes()
	vm.mu.Unlock()
	for _, p := range all {
		vm.mu.Lock()
		live := p.started && !p.exited && p.stdio.Terminal
		vm.mu.Unlock()
		if live {
			t.resize(ctx, p)
		}
	}
}
