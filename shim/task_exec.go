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
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/stdio"
)

// Exec notes a further process; Start runs it.
func (s *Service) Exec(ctx context.Context, r *taskapi.ExecProcessRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(t *Task) (*emptyResponse, error) {
		vm := t.vm
		if r.GetExecID() == "" {
			return nil, fmt.Errorf("exec in task %s: it has no id: %w", vm.id, errdefs.ErrInvalidArgument)
		}
		if !vm.spec().HasAgent() {
			return nil, fmt.Errorf("exec in task %s: %w", vm.id, errNoAgent)
		}
		if t.vm.isPod() && t.member == nil {
			return nil, fmt.Errorf("exec in the sandbox of pod %s, where no program runs: name one of its containers: %w",
				vm.id, errdefs.ErrNotImplemented)
		}
		process, notes, err := bundle.ExecProcess(r.GetSpec().GetValue(), r.GetTerminal(), t.member != nil)
		if err != nil {
			return nil, fmt.Errorf("exec %s of task %s: %w", r.GetExecID(), vm.id, err)
		}
		if err := awaitStarting(ctx, t); err != nil {
			return nil, err
		}
		if err := t.addExec(r, process); err != nil {
			return nil, err
		}
		for _, note := range notes {
			vm.log.Info("exec", "exec", r.GetExecID(), "note", note)
		}
		return &emptyResponse{}, nil
	})
}

func (t *Task) addExec(r *taskapi.ExecProcessRequest, config []byte) error {
	vm := t.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if old, ok := t.execs[r.GetExecID()]; ok && old.came && old.exited {
		old.pump.Close() // who would have deleted it is at the node that it came from
		go t.forgetExec(vm.life, old)
	} else if ok {
		return fmt.Errorf("exec %q of task %s: %w", r.GetExecID(), vm.id, errdefs.ErrAlreadyExists)
	}
	if err := t.execable(); err != nil {
		return err
	}
	uris := stdio.URIs{Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), Terminal: r.GetTerminal()}
	p := t.newProcess(r.GetExecID(), uris, config)
	t.add(p, vm.journal.Load().Generation)
	vm.events.Send(&events.TaskExecAdded{ContainerID: t.id, ExecID: p.id})
	return nil
}

// execable says whether the guest may start something; vm.mu is held.
func (t *Task) execable() error {
	vm := t.vm
	if err := vm.mutable(); err != nil {
		return err
	}
	if t.state == TaskArmed {
		return vm.pod.waits(t)
	}
	if vm.state != Running || t.init.exited || t.state != TaskRunning {
		return fmt.Errorf("exec in VM %s, which is %s: %w", vm.id, vm.state, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Start runs init, or an exec.
func (s *Service) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	return on(s, r.GetID(), func(t *Task) (*taskapi.StartResponse, error) {
		vm := t.vm
		var err error
		switch {
		case r.GetExecID() != "":
			err = t.startExec(ctx, r.GetExecID())
		case t.member != nil:
			err = t.member.start(ctx)
		default:
			err = t.vm.pod.startOwner(ctx)
		}
		vm.mu.Lock()
		defer vm.mu.Unlock()
		return &taskapi.StartResponse{Pid: t.pid()}, err
	})
}

func (t *Task) startExec(ctx context.Context, id string) error {
	vm := t.vm
	p, err := t.claimExec(id)
	if err != nil {
		return err
	}
	asked := false
	st, err := t.openStreams(id, p.stdio)
	if err == nil {
		asked = true
		err = t.run(ctx, p, st, client.Offsets{}, func() {
			vm.events.Send(&events.TaskExecStarted{ContainerID: t.id, ExecID: id, Pid: t.pid()})
			t.startTrafficOf(p)
		})
		if err != nil {
			st.Close()
		}
	}
	vm.mu.Lock()
	close(p.starting)
	p.starting = nil
	lost := err != nil && asked && mayHaveStarted(ctx, err)
	if err != nil {
		t.exit(p, 255, time.Now()) // no event: it was never started
	}
	if lost { // under the lock: an operation finds it as the Start that it was, or so
		t.orphan(p)
	}
	vm.mu.Unlock()
	if lost {
		go t.endOrphanLater(p)
	}
	if err != nil {
		return fmt.Errorf("start exec %s: %w", id, err)
	}
	t.resize(ctx, p)
	return nil
}

// forgetExec lets the guest free what it keeps of an exec that has ended.
func (t *Task) forgetExec(ctx context.Context, p *process) {
	vm := t.vm
	_, err := vm.guest().Remove(ctx, &agentv1.RemoveRequest{Id: p.guest})
	if err != nil && !errdefs.IsNotFound(err) && !errors.Is(err, context.DeadlineExceeded) {
		vm.log.Debug("forget exec", "exec", p.id, "error", err)
	}
}

// resize tells the guest the size of a terminal, if one was set. The caller that comes last tells the size that was set
// last.
func (t *Task) resize(ctx context.Context, p *process) {
	vm := t.vm
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
func (t *Task) claimExec(id string) (*process, error) {
	vm := t.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	p, err := t.find(id)
	if err != nil {
		return nil, err
	}
	if err := t.execable(); err != nil {
		return nil, err
	}
	if p.starting != nil || p.started || p.exited {
		return nil, fmt.Errorf("start exec %s: it was started before: %w", id, errdefs.ErrFailedPrecondition)
	}
	p.starting = make(chan struct{})
	return p, nil
}

// removeExec forgets an exec that has ended, or was never started.
func (t *Task) removeExec(id string) (*process, error) {
	vm := t.vm
	vm.mu.Lock()
	p, err := t.find(id)
	if err == nil && (p.starting != nil || p.started && !p.exited) {
		err = fmt.Errorf("delete exec %s, which runs: %w", id, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		vm.mu.Unlock()
		return nil, err
	}
	delete(t.execs, id)
	if p.started {
		owe(vm, p.guest)
	}
	if p.started && vm.state == Running {
		forgetSoon(vm)
	}
	t.exit(p, 0, time.Now()) // one that never ran: no caller waits for it for ever
	vm.mu.Unlock()
	if p.pump != nil {
		p.pump.Release()
	}
	return p, nil
}
