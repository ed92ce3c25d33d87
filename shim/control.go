package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/emptypb"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

type emptyResponse = emptypb.Empty

// guestBound is how long a call of containerd waits for the guest.
const guestBound = 10 * time.Second

// mutable refuses a changing call while an operation holds the VM; vm.mu is held.
func (vm *VM) mutable() error {
	if vm.frozen() {
		return fmt.Errorf("operation %s holds VM %s (%s): %w", vm.journal.Operation, vm.id, vm.state, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Pause stops the vCPUs.
func (s *Service) Pause(ctx context.Context, r *taskapi.PauseRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(vm *VM) (*emptyResponse, error) {
		if err := vm.change(Running, Pausing); err != nil {
			return nil, err
		}
		if err := vm.machine.Pause(ctx); err != nil {
			vm.leave(Pausing, Running)
			return nil, err
		}
		vm.leave(Pausing, Paused)
		vm.events.send(&events.TaskPaused{ContainerID: vm.id})
		return &emptyResponse{}, nil
	})
}

// Resume undoes Pause.
func (s *Service) Resume(ctx context.Context, r *taskapi.ResumeRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(vm *VM) (*emptyResponse, error) {
		if err := vm.change(Paused, Resuming); err != nil {
			return nil, err
		}
		if err := vm.machine.Resume(ctx); err != nil {
			vm.leave(Resuming, Paused)
			return nil, err
		}
		vm.leave(Resuming, Running)
		vm.events.send(&events.TaskResumed{ContainerID: vm.id})
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

// Kill signals a process. SIGKILL for init always works: if the guest does not answer,
// the VM goes.
func (s *Service) Kill(ctx context.Context, r *taskapi.KillRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(vm *VM) (*emptyResponse, error) {
		return &emptyResponse{}, vm.kill(ctx, r.GetExecID(), r.GetSignal(), r.GetAll())
	})
}

func (vm *VM) kill(ctx context.Context, execID string, signal uint32, all bool) error {
	vm.mu.Lock()
	p, err := vm.find(execID)
	if err == nil {
		err = vm.killable(p, signal)
	}
	state, agent := vm.state, vm.agent
	if err == nil && state == Starting {
		vm.abortStart() // under the lock: Start looks at it there before it succeeds
	}
	vm.mu.Unlock()
	if err != nil {
		return err
	}
	const sigkill = 9
	switch state {
	case Created:
		if !vm.endCreated(ctx, 128+signal) {
			return vm.kill(ctx, execID, signal, all) // a Start was faster
		}
		return nil
	case Starting:
		return nil
	case Paused:
		vm.end(ctx, killed, time.Now())
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, guestBound)
	defer cancel()
	_, err = agent.Kill(ctx, &agentv1.KillRequest{Id: execID, Signal: signal, All: all})
	if err != nil && signal == sigkill && execID == "" && !errdefs.IsNotFound(err) {
		vm.log.Warn("guest does not answer: kill the VM", "error", err)
		vm.end(context.WithoutCancel(ctx), killed, time.Now())
		return nil
	}
	return err
}

// killable says whether signal can reach p; vm.mu is held.
func (vm *VM) killable(p *process, signal uint32) error {
	if p.exited {
		return fmt.Errorf("process already finished: %w", errdefs.ErrNotFound)
	}
	if err := vm.mutable(); err != nil {
		return err
	}
	const sigkill = 9
	if p.id != "" && !p.started {
		return fmt.Errorf("exec %s is not started: %w", p.id, errdefs.ErrFailedPrecondition)
	}
	switch vm.state {
	case Created, Running:
		return nil
	case Starting, Paused:
		if p.id == "" && signal == sigkill {
			return nil
		}
	}
	return fmt.Errorf("signal %d while VM %s is %s: %w", signal, vm.id, vm.state, errdefs.ErrFailedPrecondition)
}

// endCreated ends a task whose guest has never run; false says that the task is not one.
// The state keeps a Start away before the fence is written.
func (vm *VM) endCreated(ctx context.Context, status uint32) bool {
	if err := vm.enterFrom(Created, Ending); err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
	defer cancel()
	if err := vm.giveBack(ctx); err != nil {
		vm.log.Error("give back wake", "error", err)
	}
	vm.end(ctx, status, time.Now())
	return true
}

// giveBack closes the wake that a task which never ran has open.
func (vm *VM) giveBack(ctx context.Context) error {
	j := vm.noted()
	if j.Phase != Incoming && j.Phase != Ready {
		return nil
	}
	return vm.fence(ctx, "the task ended before it ran")
}

// CloseIO ends stdin behind what was written to it. A client may be so fast that the
// process does not run yet.
func (s *Service) CloseIO(_ context.Context, r *taskapi.CloseIORequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(vm *VM) (*emptyResponse, error) {
		vm.mu.Lock()
		defer vm.mu.Unlock()
		p, err := vm.find(r.GetExecID())
		if err != nil {
			return nil, err
		}
		if r.GetStdin() {
			p.noStdin = true
			if p.pumps != nil {
				p.pumps.streams.closeStdin()
			}
		}
		return &emptyResponse{}, nil
	})
}

// ResizePty also works between Create and Start: the size is kept until then.
func (s *Service) ResizePty(ctx context.Context, r *taskapi.ResizePtyRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(vm *VM) (*emptyResponse, error) {
		vm.mu.Lock()
		p, err := vm.find(r.GetExecID())
		if err == nil {
			err = vm.mutable()
		}
		if err == nil {
			p.width, p.height = r.GetWidth(), r.GetHeight()
		}
		agent, started := vm.agent, err == nil && p.started && !p.exited && vm.state == Running
		vm.mu.Unlock()
		if err != nil || !started {
			return &emptyResponse{}, err
		}
		ctx, cancel := context.WithTimeout(ctx, guestBound)
		defer cancel()
		_, err = agent.Resize(ctx, &agentv1.ResizeRequest{Id: p.id, Width: r.GetWidth(), Height: r.GetHeight()})
		return &emptyResponse{}, err
	})
}

// Update changes the limits inside the guest. The size of the VM stays.
func (s *Service) Update(ctx context.Context, r *taskapi.UpdateTaskRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(vm *VM) (*emptyResponse, error) {
		vm.mu.Lock()
		err := vm.mutable()
		if err == nil && vm.state != Running {
			err = fmt.Errorf("update VM %s, which is %s: %w", vm.id, vm.state, errdefs.ErrFailedPrecondition)
		}
		agent := vm.agent
		vm.mu.Unlock()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, guestBound)
		defer cancel()
		_, err = agent.Update(ctx, &agentv1.UpdateRequest{Resources: r.GetResources().GetValue()})
		return &emptyResponse{}, err
	})
}
