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
	"godwit.dev/godwit/shim/bundle"
)

// Exec notes a further process; Start runs it.
func (s *Service) Exec(_ context.Context, r *taskapi.ExecProcessRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(vm *VM) (*emptyResponse, error) {
		if r.GetExecID() == "" {
			return nil, fmt.Errorf("exec in task %s: it has no id: %w", vm.id, errdefs.ErrInvalidArgument)
		}
		if !vm.spec().HasAgent() {
			return nil, fmt.Errorf("exec in task %s: %w", vm.id, errNoAgent)
		}
		process, notes, err := bundle.ExecProcess(r.GetSpec().GetValue(), r.GetTerminal())
		if err != nil {
			return nil, fmt.Errorf("exec %s of task %s: %w", r.GetExecID(), vm.id, err)
		}
		if err := vm.addExec(r, process); err != nil {
			return nil, err
		}
		for _, note := range notes {
			vm.log.Info("exec", "exec", r.GetExecID(), "note", note)
		}
		return &emptyResponse{}, nil
	})
}

func (vm *VM) addExec(r *taskapi.ExecProcessRequest, config []byte) error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if old, ok := vm.execs[r.GetExecID()]; ok && old.came && old.exited {
		old.pumps.streams.close() // who would have deleted it is at the node that it came from
		go vm.forgetExec(vm.life, old)
	} else if ok {
		return fmt.Errorf("exec %q of task %s: %w", r.GetExecID(), vm.id, errdefs.ErrAlreadyExists)
	}
	if err := vm.execable(); err != nil {
		return err
	}
	stdio := Stdio{Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), Terminal: r.GetTerminal()}
	p := newProcess(r.GetExecID(), stdio, config)
	// The guest may not have forgotten an earlier exec of that id, or not know yet that
	// one it was told to start is not wanted.
	vm.incarnation++
	// Whatever of a checkpoint is left in the guest was of another generation.
	p.guest = fmt.Sprintf("%s#%d.%d", p.id, vm.journal.Generation, vm.incarnation)
	vm.execs[p.id] = p
	vm.events.Send(&events.TaskExecAdded{ContainerID: vm.id, ExecID: p.id})
	return nil
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
	asked := false
	st, err := vm.open(id, p.stdio)
	if err == nil {
		asked = true
		err = vm.run(ctx, p, st, guest.Offsets{}, func() {
			vm.events.Send(&events.TaskExecStarted{ContainerID: vm.id, ExecID: id, Pid: vm.pid()})
			vm.flowOne(p)
		})
		if err != nil {
			st.close()
		}
	}
	vm.mu.Lock()
	close(p.starting)
	p.starting = nil
	lost := err != nil && asked && unheard(ctx, err)
	if err != nil {
		vm.exit(p, 255, time.Now()) // no event: it was never started
	}
	if lost { // under the lock: an operation finds it as the Start that it was, or so
		vm.renounced = append(vm.renounced, p)
	}
	vm.mu.Unlock()
	if lost {
		go vm.renounce(p)
	}
	if err != nil {
		return fmt.Errorf("start exec %s: %w", id, err)
	}
	vm.resize(ctx, p)
	return nil
}

// forgetExec lets the guest free what it keeps of an exec that has ended.
func (vm *VM) forgetExec(ctx context.Context, p *process) {
	_, err := vm.guest().Remove(ctx, &agentv1.RemoveRequest{Id: p.guest})
	if err != nil && !errdefs.IsNotFound(err) && !errors.Is(err, context.DeadlineExceeded) {
		vm.log.Debug("forget exec", "exec", p.id, "error", err)
	}
}

// resize tells the guest the size of a terminal, if one was set. Whoever comes last
// tells the size that was set last.
func (vm *VM) resize(ctx context.Context, p *process) {
	p.sizing.Lock()
	defer p.sizing.Unlock()
	vm.mu.Lock()
	agent, width, height := vm.agent, p.width, p.height
	vm.mu.Unlock()
	if width == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, guestBound)
	defer cancel()
	_, err := agent.Resize(ctx, &agentv1.ResizeRequest{Id: p.guest, Width: width, Height: height})
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
	if p.starting != nil || p.started || p.exited {
		return nil, fmt.Errorf("start exec %s: it was started before: %w", id, errdefs.ErrFailedPrecondition)
	}
	p.starting = make(chan struct{})
	return p, nil
}

// forgetBound is what a guest may take to hear that nobody asks for an exec any more.
const forgetBound = time.Second

// removeExec forgets an exec that has ended, or was never started.
func (vm *VM) removeExec(ctx context.Context, id string) (*process, error) {
	vm.mu.Lock()
	p, err := vm.find(id)
	if err == nil && (p.starting != nil || p.started && !p.exited) {
		err = fmt.Errorf("delete exec %s, which runs: %w", id, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		vm.mu.Unlock()
		return nil, err
	}
	delete(vm.execs, id)
	ask := p.started && vm.state == Running
	vm.exit(p, 0, time.Now()) // one that never ran: nobody waits for it for ever
	vm.mu.Unlock()
	if p.pumps != nil {
		p.pumps.stop()
		p.pumps.streams.close()
	}
	if ask {
		ctx, cancel := context.WithTimeout(ctx, forgetBound)
		defer cancel()
		vm.forgetExec(ctx, p)
	}
	return p, nil
}
