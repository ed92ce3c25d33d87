package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/shim/bundle"
)

// start lets the container's init run. After a failure the task has ended.
func (m *member) start(ctx context.Context) error {
	t := m.t
	vm := t.vm
	if m.ended != nil {
		return m.startEnded(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, memberBound)
	defer cancel()
	vm.mu.Lock()
	if vm.pod.restores() {
		vm.mu.Unlock()
		return vm.pod.arm(t)
	}
	err := errors.Join(vm.pod.takesMembers(), m.notKilled())
	if err == nil {
		err = t.setState(TaskStarting)
	}
	if err != nil {
		vm.mu.Unlock()
		return fmt.Errorf("start task %s: %w", t.id, err)
	}
	t.startOver, t.abortStart = make(chan struct{}), cancel
	defer close(t.startOver)
	over := vm.call()
	vm.mu.Unlock()
	defer over()
	if err := m.run(ctx); err != nil {
		err = errors.Join(fmt.Errorf("start task %s: %w", t.id, err), m.giveUpStart())
		vm.log.Error("start task", "task", t.id, "error", err)
		return err
	}
	t.resize(ctx, t.init)
	if err := t.bundle.Hooks.Run(ctx, bundle.Poststart, t.hookState(specs.StateRunning)); err != nil {
		vm.log.Warn("run hooks", "task", t.id, "error", err)
	}
	return nil
}

// notKilled refuses to start a container that was killed before; nil, which is the sandbox, was not. The VM's lock is
// held.
func (m *member) notKilled() error {
	if m == nil || m.ending == nil {
		return nil
	}
	return fmt.Errorf("it was killed before: %w", errdefs.ErrFailedPrecondition)
}

func (m *member) run(ctx context.Context) error {
	t := m.t
	st, err := t.openStreams(t.id, t.init.stdio)
	if err != nil {
		return err
	}
	var failed error
	err = t.run(ctx, t.init, st, client.Offsets{}, func() {
		if failed = t.setState(TaskRunning); failed != nil {
			return
		}
		t.vm.events.Send(&events.TaskStart{ContainerID: t.id, Pid: t.pid()})
		t.startTrafficOf(t.init)
	})
	if err != nil {
		st.Close()
	}
	return errors.Join(err, failed)
}

// giveUpStart ends what a Start that failed may have left in the guest: an answer that did not come says nothing of
// the process.
func (m *member) giveUpStart() error {
	t := m.t
	vm := t.vm
	ctx, cancel := context.WithTimeout(vm.life, undoBound)
	defer cancel()
	err := removeContainer(ctx, vm.guest(), t.guest)
	if err != nil {
		vm.log.Warn("guest does not give up a start: kill the VM", "task", t.id, "error", err)
		vm.ending.end(ctx, killed, time.Now())
	}
	m.end(ctx, notStarted, time.Now())
	return err
}

// notStarted is the status of a container whose start failed, as CRI has it.
const notStarted = 128
