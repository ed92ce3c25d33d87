package shim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/shim/bundle"
)

// Task is what containerd knows of a container in the VM. The VM's lock guards its fields.
type Task struct {
	vm      *VM
	id      string // containerd's
	guest   string // the container's id in the guest: empty for a VM with one, spec.PIDPod for the owner of a pod
	bundle  *bundle.Bundle
	created chan struct{} // closed when Create is over
	state   TaskState

	processTable
	signals    []pending          // that came while the VM was paused
	enforcing  bool               // SIGKILL was sent to init
	oom        bool               // the container has met its memory limit
	abortStart context.CancelFunc // while starting
	startOver  chan struct{}      // closed when the Start that has begun is over
	deletes    chan struct{}      // has an element while a Delete is at work
	stats      statsCache         // has a lock of its own
	member     *member            // nil: the task owns the VM
}

// newTask makes a task of the VM; vm.mu is held, or the VM is new.
func (vm *VM) newTask(id string) *Task {
	t := &Task{vm: vm, id: id, state: TaskNew, created: make(chan struct{}),
		deletes: make(chan struct{}, 1), processTable: processTable{execs: map[string]*process{}}}
	vm.tasks[id] = t
	return t
}

// allTasks are those of the VM, for a caller that does not hold the lock.
func (vm *VM) allTasks() []*Task {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return slices.Collect(maps.Values(vm.tasks))
}

// TaskState is how far a task has come. A pause or an operation is the VM's and no state of a task.
type TaskState string

// States of a task. Those that end in -ing belong to the call that entered them.
const (
	TaskNew      TaskState = "new"
	TaskCreating TaskState = "creating"
	TaskCreated  TaskState = "created"
	TaskArmed    TaskState = "armed" // started, of a restored pod whose VM waits for its other tasks
	TaskStarting TaskState = "starting"
	TaskRunning  TaskState = "running"
	TaskStopped  TaskState = "stopped"
	TaskDeleting TaskState = "deleting"
	TaskDeleted  TaskState = "deleted"
)

var taskTransitions = map[TaskState][]TaskState{
	TaskNew:      {TaskCreating},
	TaskCreating: {TaskCreated, TaskNew},
	TaskCreated:  {TaskStarting, TaskArmed, TaskStopped},
	TaskArmed:    {TaskStarting, TaskRunning, TaskStopped},
	TaskStarting: {TaskRunning, TaskStopped},
	TaskRunning:  {TaskStopped},
	TaskStopped:  {TaskDeleting},
	TaskDeleting: {TaskDeleted, TaskStopped},
	TaskDeleted:  {},
}

// container names the task's container in calls of the agent: a VM with one has no name for it.
func (t *Task) container() string {
	if t.member != nil {
		return t.guest
	}
	return ""
}

// setState moves the task. It is the only writer of t.state; vm.mu is held.
func (t *Task) setState(next TaskState) error {
	if !slices.Contains(taskTransitions[t.state], next) {
		return fmt.Errorf("task %s is %s, which does not lead to %s: %w", t.id, t.state, next, errdefs.ErrFailedPrecondition)
	}
	t.state = next
	return nil
}

// enter moves the VM and its task in one.
func (t *Task) enter(next State, own TaskState) error {
	t.vm.mu.Lock()
	defer t.vm.mu.Unlock()
	if err := t.vm.setState(next); err != nil {
		return err
	}
	return t.setState(own)
}

// leave ends a transitional state of both, unless the VM has ended meanwhile.
func (t *Task) leave(from, next State, own TaskState) {
	t.vm.mu.Lock()
	defer t.vm.mu.Unlock()
	if t.vm.state != from {
		return
	}
	if err := errors.Join(t.vm.setState(next), t.setState(own)); err != nil {
		t.vm.log.Error("leave state", "error", err)
	}
}

// pid is what containerd shows: the sandbox process's. vm.mu is held.
func (t *Task) pid() uint32 {
	j := t.vm.journal.Load()
	switch {
	case j == nil:
		return 0
	case t.member != nil:
		return uint32(t.member.holder.PID)
	}
	return uint32(j.Holder.PID)
}

// hookState is what OCI hooks get on stdin. A task that has stopped has no process: its
// pid may be another's by then.
func (t *Task) hookState(status specs.ContainerState) specs.State {
	vm := t.vm
	s := specs.State{Version: specs.Version, ID: t.id, Status: status, Bundle: t.bundle.Dir,
		Annotations: t.bundle.Annotations}
	if status != specs.StateStopped {
		vm.mu.Lock()
		defer vm.mu.Unlock()
		s.Pid = int(t.pid())
	}
	return s
}
