package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
)

// finish ends a container after its init: its other processes first, init's exit last. The VM and the other
// containers go on. Who comes later waits for the first.
func (m *member) finish(status uint32, at time.Time) {
	m.finished.Do(func() { m.finishOnce(status, at) })
}

// finishOnce waits while the VM stands still: the guest cannot say its last words of the container. Where the VM goes
// instead of running on, the guest tells that end again.
func (m *member) finishOnce(status uint32, at time.Time) {
	for !m.tryFinish(status, at) {
		retry.Sleep(m.t.vm.life, retryWait)
	}
}

// tryFinish answers false where the VM stands still, or is about to.
func (m *member) tryFinish(status uint32, at time.Time) (over bool) {
	t := m.t
	vm := t.vm
	life, cancel := context.WithTimeout(vm.life, endBound)
	defer cancel()
	vm.mu.Lock()
	flows, leave, ok := vm.traffic.join()
	over = vm.state.over() // what ended it tells the ends of all
	vm.mu.Unlock()
	if !ok && !over && vm.life.Err() != nil {
		m.end(life, status, at)
		return true
	}
	if !ok {
		return over
	}
	defer leave()
	ctx, cancel := context.WithTimeout(flows, endBound)
	defer cancel()
	vm.ending.endExecsOf(ctx, t)
	if agent := vm.guest(); agent != nil {
		// In a pid namespace that is shared, init's end ends no other process.
		_, err := agent.Kill(ctx, &agentv1.KillRequest{Id: t.guest, Signal: sigkill, All: true})
		if err != nil && !errdefs.IsNotFound(err) {
			vm.log.Debug("kill what is left of a container", "task", t.id, "error", err)
		}
	}
	t.refreshStats(ctx)
	m.readTermination(ctx)
	if flows.Err() != nil {
		return false
	}
	m.end(life, status, at)
	return true
}

// end writes the end of a container down and tells it. Its sandbox process ends before: clients take the pid of
// a task that has ended for a free one.
func (m *member) end(ctx context.Context, status uint32, at time.Time) {
	t := m.t
	vm := t.vm
	m.readTermination(ctx)
	if err := endHolder(ctx, m.holder); err != nil {
		vm.log.Warn("end sandbox process", "task", t.id, "error", err)
	}
	if err := journal.WriteExit(t.bundle.Dir, journal.Exit{Status: status, At: at}); err != nil {
		vm.log.Warn("note end", "task", t.id, "error", err)
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if t.state.over() { // with the VM
		return
	}
	for _, p := range t.all() {
		s := status
		if p.id != "" {
			s = killed
		}
		t.exit(p, s, at)
	}
	if err := t.setState(TaskStopped); err != nil {
		vm.log.Error("end task", "task", t.id, "error", err)
	}
}

// hasEnded reports whether the container's end was told, or it has not come to be.
func (m *member) hasEnded() bool {
	m.t.vm.mu.Lock()
	defer m.t.vm.mu.Unlock()
	return m.t.bundle == nil || m.t.init == nil || m.t.init.exited
}

// endHolders ends the sandbox processes of a pod's containers.
func endHolders(ctx context.Context, j *journal.Journal) (err error) {
	for _, m := range j.Members {
		err = errors.Join(err, endHolder(ctx, m.Holder))
	}
	return err
}

// over reports whether a task has ended, or has not come to be.
func (s TaskState) over() bool {
	switch s {
	case TaskStopped, TaskDeleting, TaskDeleted, TaskNew, TaskCreating:
		return true
	}
	return false
}

// endCreated ends a container whose init has never run; false says that it is not one.
func (m *member) endCreated(ctx context.Context, status uint32, at time.Time) bool {
	t := m.t
	vm := t.vm
	vm.mu.Lock()
	mine := t.state == TaskCreated && m.ending == nil
	if mine {
		m.ending = make(chan struct{})
	}
	over := m.ending
	vm.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endBound)
	defer cancel()
	switch {
	case over == nil:
		return false
	case mine:
		m.end(ctx, status, at)
		close(over)
	default: // another call ends it
		select {
		case <-over:
		case <-ctx.Done():
		}
	}
	return true
}

// deliverEarly is delivery for an init that does not run yet; nil: it does. vm.mu is held.
func (m *member) deliverEarly(signal uint32) func(context.Context) (again bool, err error) {
	vm := m.t.vm
	switch {
	case m.t.state == TaskArmed && !ends(signal):
		return done
	case m.t.state == TaskArmed && vm.state == Created: // without it the pod is not what it was
		return func(ctx context.Context) (bool, error) { return !vm.endCreated(ctx, killed), nil }
	case m.t.state == TaskArmed && vm.state == Starting && signal == sigkill:
		vm.owner.abortStart()
		return done
	case m.t.state == TaskArmed && vm.state == Starting:
		return wait(vm.owner.startOver)
	case m.t.state == TaskStarting && signal == sigkill:
		m.t.abortStart()
		return wait(m.t.startOver)
	case m.t.state == TaskStarting:
		return wait(m.t.startOver)
	case m.t.state != TaskCreated:
		return nil
	case !ends(signal):
		return done
	}
	return func(ctx context.Context) (bool, error) { return !m.endCreated(ctx, 128+signal, time.Now()), nil }
}

// delete frees what is left of a container that has ended or never ran. What cannot be freed fails the call, so
// that it can be repeated.
func (m *member) delete(ctx context.Context) error {
	t := m.t
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
	defer cancel()
	m.endCreated(ctx, 0, time.Now())
	vm := t.vm
	vm.mu.Lock()
	err := vm.mutable()
	if err == nil && t.state != TaskStopped {
		err = fmt.Errorf("it is %s, not %s: %w", t.state, TaskStopped, errdefs.ErrFailedPrecondition)
	}
	if err == nil {
		err = t.setState(TaskDeleting)
	}
	over := vm.call()
	vm.mu.Unlock()
	defer over()
	if err != nil {
		return fmt.Errorf("delete task %s: %w", t.id, err)
	}
	next := TaskDeleted
	if err = m.release(ctx); err != nil {
		next = TaskStopped
		err = fmt.Errorf("delete task %s: %w", t.id, err)
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if e := t.setState(next); e != nil {
		vm.log.Error("delete task", "task", t.id, "error", e)
	}
	return err
}

// release frees what a container has, in the guest if there is one.
func (m *member) release(ctx context.Context) error {
	t := m.t
	vm := t.vm
	for _, p := range t.all() {
		if p.pump != nil {
			p.pump.Close()
		}
	}
	if err := m.free(ctx); err != nil {
		return err
	}
	if err := t.bundle.Hooks.Run(ctx, bundle.Poststop, t.hookState(specs.StateStopped)); err != nil {
		vm.log.Warn("run hooks", "task", t.id, "error", err)
	}
	return vm.pod.forget(ctx, t)
}
