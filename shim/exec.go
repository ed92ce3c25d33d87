package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest"
)

// Exec notes a further process; Start runs it.
func (s *Service) Exec(_ context.Context, r *taskapi.ExecProcessRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(vm *VM) (*emptyResponse, error) {
		vm.mu.Lock()
		defer vm.mu.Unlock()
		if _, ok := vm.execs[r.GetExecID()]; ok || r.GetExecID() == "" {
			return nil, fmt.Errorf("exec %q of task %s: %w", r.GetExecID(), vm.id, errdefs.ErrAlreadyExists)
		}
		if err := vm.execable(); err != nil {
			return nil, err
		}
		stdio := Stdio{Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), Terminal: r.GetTerminal()}
		vm.execs[r.GetExecID()] = newProcess(r.GetExecID(), stdio, r.GetSpec().GetValue())
		vm.events.send(&events.TaskExecAdded{ContainerID: vm.id, ExecID: r.GetExecID()})
		return &emptyResponse{}, nil
	})
}

// execable says whether the guest may start something; vm.mu is held.
func (vm *VM) execable() error {
	if err := vm.mutable(); err != nil {
		return err
	}
	if vm.state != Running || vm.init.exited {
		return fmt.Errorf("exec in VM %s, which is %s: %w", vm.id, vm.state, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Start runs init, or an exec.
func (s *Service) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	return on(s, r.GetID(), func(vm *VM) (*taskapi.StartResponse, error) {
		var err error
		if r.GetExecID() == "" {
			err = vm.startInit(ctx)
		} else {
			err = vm.startExec(ctx, r.GetExecID())
		}
		vm.mu.Lock()
		defer vm.mu.Unlock()
		return &taskapi.StartResponse{Pid: vm.pid()}, err
	})
}

func (vm *VM) startExec(ctx context.Context, id string) error {
	p, err := vm.claimExec(id)
	if err != nil {
		return err
	}
	st, err := openStreams(vm.namespace, id, p.stdio)
	if err == nil {
		if err = vm.run(ctx, p, st, guest.Offsets{}); err != nil {
			st.close()
		}
	}
	vm.mu.Lock()
	p.starting = false
	if err == nil {
		vm.events.send(&events.TaskExecStarted{ContainerID: vm.id, ExecID: id, Pid: vm.pid()})
		vm.flowOne(p)
	} else {
		vm.exit(p, 255, time.Now()) // no event: it was never started
	}
	vm.mu.Unlock()
	if err != nil {
		return fmt.Errorf("start exec %s: %w", id, err)
	}
	vm.resize(ctx, p)
	return nil
}

// resize gives a terminal the size that was set before its process ran.
func (vm *VM) resize(ctx context.Context, p *process) {
	vm.mu.Lock()
	agent, width, height := vm.agent, p.width, p.height
	vm.mu.Unlock()
	if width == 0 {
		return
	}
	_, err := agent.Resize(ctx, &agentv1.ResizeRequest{Id: p.id, Width: width, Height: height})
	if err != nil {
		vm.log.Debug("resize terminal", "exec", p.id, "error", err)
	}
}

// claimExec makes the caller the one that starts the exec.
func (vm *VM) claimExec(id string) (*process, error) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	p, err := vm.find(id)
	if err != nil {
		return nil, err
	}
	if err := vm.execable(); err != nil {
		return nil, err
	}
	if p.starting || p.started || p.exited {
		return nil, fmt.Errorf("start exec %s: it was started before: %w", id, errdefs.ErrFailedPrecondition)
	}
	p.starting = true
	return p, nil
}

// removeExec forgets an exec that has ended, or was never started.
func (vm *VM) removeExec(ctx context.Context, id string) (*process, error) {
	vm.mu.Lock()
	p, err := vm.find(id)
	if err == nil && (p.starting || p.started && !p.exited) {
		err = fmt.Errorf("delete exec %s, which runs: %w", id, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		vm.mu.Unlock()
		return nil, err
	}
	delete(vm.execs, id)
	agent, ask := vm.agent, p.started && vm.state == Running
	vm.mu.Unlock()
	if p.pumps != nil {
		p.pumps.stop()
		p.pumps.streams.close()
	}
	if ask {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := agent.Remove(ctx, &agentv1.RemoveRequest{Id: id})
		if err != nil && !errdefs.IsNotFound(err) && !errors.Is(err, context.DeadlineExceeded) {
			vm.log.Debug("forget exec", "exec", id, "error", err)
		}
	}
	return p, nil
}
