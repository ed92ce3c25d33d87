package shim

import (
	"context"
	"fmt"
	"slices"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
)

const (
	sigkill   = uint32(unix.SIGKILL)
	maxSignal = 64
)

// pending is a signal for a paused VM, whose processes get it when they run again, as
// those of a frozen container do.
type pending struct {
	process *process
	signal  uint32
	all     bool
}

// Kill signals a process. SIGKILL for init always works: if the guest does not answer,
// the VM goes.
func (s *Service) Kill(ctx context.Context, r *taskapi.KillRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(t *Task) (*emptyResponse, error) {
		if r.GetSignal() > maxSignal {
			return nil, fmt.Errorf("signal %d: there is none of that number: %w", r.GetSignal(), errdefs.ErrInvalidArgument)
		}
		if r.GetExecID() == "" && t.vm.pod.stop.holds(heldSignal{t, r.GetSignal(), r.GetAll()}) {
			return &emptyResponse{}, nil
		}
		return &emptyResponse{}, t.kill(ctx, r.GetExecID(), r.GetSignal(), r.GetAll())
	})
}

func (t *Task) kill(ctx context.Context, execID string, signal uint32, all bool) error {
	vm, told := t.vm, signal == 0 // that sends nothing
	for {
		vm.mu.Lock()
		p, err := t.find(execID)
		var act func(context.Context) (bool, error)
		if err == nil {
			if act = killResuming(t, p, signal); act == nil {
				err = t.killable(p)
			}
		}
		if err != nil {
			vm.mu.Unlock()
			return err
		}
		if act == nil {
			act = t.delivery(p, signal, all)
		}
		lives := vm.state != Stopped
		vm.mu.Unlock()
		if lives && !told { // before the end that it may bring: nothing is told after that
			told = true
			vm.events.Send(&machinev1.TaskKilled{ContainerId: t.id, ExecId: execID, Signal: signal, All: all})
		}
		again, err := act(ctx)
		if !again {
			return err
		}
	}
}

// killable says whether p is there to be signalled; vm.mu is held.
func (t *Task) killable(p *process) error {
	vm := t.vm
	if p.exited {
		return fmt.Errorf("process already finished: %w", errdefs.ErrNotFound)
	}
	if err := vm.mutable(); err != nil {
		return err
	}
	if p.id != "" && !p.started && p.starting == nil {
		return fmt.Errorf("exec %s is not started: %w", p.id, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// done is a signal that has nothing to do any more.
func done(context.Context) (again bool, err error) { return false, nil }

// wait has a signal asked for again when something is over.
func wait(over <-chan struct{}) func(context.Context) (again bool, err error) {
	return func(ctx context.Context) (bool, error) {
		select {
		case <-over:
			return true, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// delivery answers how a signal gets to p from the state of now; what it answers may have
// to be asked for again. vm.mu is held.
func (t *Task) delivery(p *process, signal uint32, all bool) func(context.Context) (again bool, err error) {
	vm := t.vm
	fatal := p.id == "" && signal == sigkill
	if t.member != nil && p.id == "" {
		if early := t.member.deliverEarly(signal); early != nil {
			return early
		}
	}
	switch vm.state {
	case Created:
		if !ends(signal) {
			return done
		}
		return func(ctx context.Context) (bool, error) { return !vm.endCreated(ctx, 128+signal), nil }
	case Ending:
		return done // as a process that is dying takes any signal
	case Starting:
		if fatal {
			t.abortStart() // under the lock: Start looks at it there before it succeeds
			return done
		}
		return wait(t.startOver)
	case Pausing, Paused, Resuming:
		if fatal {
			return func(ctx context.Context) (bool, error) {
				vm.ending.end(context.WithoutCancel(ctx), killed, time.Now())
				return false, nil
			}
		}
		if next := (pending{p, signal, all}); !slices.Contains(t.signals, next) {
			t.signals = append(t.signals, next)
		}
		return done
	case Running:
		if p.starting != nil {
			return wait(p.starting)
		}
		agent, over := vm.agent, vm.call()
		return func(ctx context.Context) (bool, error) {
			defer over()
			err := t.signal(ctx, agent, pending{p, signal, all})
			if errdefs.IsUnavailable(err) { // the VM is about to end, and the process with it
				ctx, cancel := context.WithTimeout(ctx, guestBound)
				defer cancel()
				if again, _ := wait(p.done)(ctx); again {
					return true, nil
				}
			}
			return false, err
		}
	}
	err := fmt.Errorf("signal %d while VM %s is %s: %w", signal, vm.id, vm.state, errdefs.ErrFailedPrecondition)
	return func(context.Context) (bool, error) { return false, err }
}

// heldBound is how long a guest that may wait for its RAM has to answer who ends it. For a container of a pod, which is
// not all of the VM, it has the time of any call.
const heldBound = time.Second

// signal has the guest deliver it.
func (t *Task) signal(ctx context.Context, agent agentv1.AgentService, s pending) error {
	vm := t.vm
	patience := guestBound
	if s.signal == sigkill && s.process.id == "" && t.member == nil && vm.postcopy.filling() != nil {
		patience = heldBound
	}
	asks := ctx
	if s.signal == sigkill && s.process.id == "" {
		asks = context.WithoutCancel(ctx) // that the caller has gone says nothing of the guest
	}
	bound, cancel := context.WithTimeout(asks, patience)
	defer cancel()
	if !vm.spec().HasAgent() {
		return vm.signalSystem(bound, s.signal)
	}
	_, err := agent.Kill(bound, &agentv1.KillRequest{Id: s.process.guest, Signal: s.signal, All: s.all})
	if s.signal != sigkill || s.process.id != "" {
		return err
	}
	if err != nil && !errdefs.IsNotFound(err) {
		vm.log.Warn("guest does not answer: kill the VM", "error", err)
		vm.ending.end(context.WithoutCancel(ctx), killed, time.Now())
		return nil
	}
	t.endUnresponsive()
	return err
}

// killBound is how long a guest has to report the end of an init that it says is killed
// or gone: draining output and stopping in order take up to 20 s. A variable for the
// tests.
var killBound = 30 * time.Second

// endUnresponsive ends the VM of a guest that does not do what it was told. A guest that stands
// still cannot: it gets its time when it runs again.
func (t *Task) endUnresponsive() {
	vm := t.vm
	vm.mu.Lock()
	begun := t.enforcing
	t.enforcing = true
	vm.mu.Unlock()
	if begun {
		return
	}
	bound := killBound // here: what follows may end after the test that changed it
	go func() {
		for {
			select {
			case <-t.init.done:
				return
			case <-vm.life.Done():
				return
			case <-time.After(bound):
			}
			vm.mu.Lock()
			runs, pump := vm.state == Running, t.init.pump
			vm.mu.Unlock()
			if runs && t.member != nil && pump != nil {
				if r := pump.Reported(); r != nil { // what is late is its output, or what comes after its end
					t.member.finish(r.GetExitStatus(), time.Unix(0, r.GetExitedAtUnixNano()))
					return
				}
			}
			if runs {
				vm.log.Warn("guest does not end a process that was killed: kill the VM")
				vm.ending.end(context.WithoutCancel(vm.life), killed, time.Now())
				return
			}
		}
	}()
}

// deliver gives the signals that came during a pause to their processes.
func (t *Task) deliver(ctx context.Context) {
	vm := t.vm
	vm.mu.Lock()
	signals, agent := t.signals, vm.agent
	t.signals = nil
	vm.mu.Unlock()
	for _, s := range signals {
		if err := t.signal(ctx, agent, s); err != nil && !errdefs.IsNotFound(err) {
			vm.log.Warn("deliver signal after a pause", "signal", s.signal, "exec", s.process.id, "error", err)
		}
	}
}

// ends says whether a process without a handler ends with a signal: a task that was
// created only does so then.
func ends(signal uint32) bool {
	switch unix.Signal(signal) {
	case 0, unix.SIGCHLD, unix.SIGCONT, unix.SIGURG, unix.SIGWINCH, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		return false
	}
	return true
}

// endCreated ends a task whose guest has never run; false says that the task is not one.
// The state keeps a Start away before the fence is written.
func (vm *VM) endCreated(ctx context.Context, status uint32) bool {
	if err := vm.enterFrom(Created, Ending); err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
	defer cancel()
	if vm.origin.arrival != nil {
		vm.origin.arrival.stop()
	}
	if err := vm.fenceUnstarted(ctx); err != nil {
		vm.log.Error("give back wake", "error", err)
	}
	vm.ending.end(ctx, status, time.Now())
	return true
}

// fenceUnstarted closes the wake that a task which never ran has open.
func (vm *VM) fenceUnstarted(ctx context.Context) error {
	j := vm.journal.Load()
	if j.Phase != journal.Incoming && j.Phase != journal.Ready {
		return nil
	}
	return vm.fence(ctx, "the task ended before it ran")
}
