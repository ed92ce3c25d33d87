// Package shim serves containerd's task API for one VM. The VM is a state machine
// whose table is transitions; what a node must know after a crash is in the journal,
// written before each effect; what a step has made, the steps after it can undo.
//
// The mutex of a VM guards its fields and is never held over IO: a call that works
// enters a transitional state, lets go, works, and leaves that state. So State, Pids,
// Wait, Connect and Stats answer at any time, from what the host knows.
package shim

import (
	"fmt"
	"slices"

	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
)

// State of a VM's task.
type State string

// States. Those that end in -ing belong to the call that entered them.
const (
	New       State = "new"
	Creating  State = "creating"
	Created   State = "created"
	Ending    State = "ending" // created, and ended before it ran
	Starting  State = "starting"
	Running   State = "running"
	Pausing   State = "pausing"
	Paused    State = "paused"
	Resuming  State = "resuming"
	Capturing State = "capturing" // the snapshot is being made
	Captured  State = "captured"  // complete in the store; still paused
	Voting    State = "voting"
	Voted     State = "voted" // the VMM is stopped; the controller decides
	Aborting  State = "aborting"
	Releasing State = "releasing"
	Stopped   State = "stopped"
	Deleting  State = "deleting"
	Deleted   State = "deleted"
)

var transitions = map[State][]State{
	New:       {Creating},
	Creating:  {Created, New},
	Created:   {Starting, Ending},
	Ending:    {Stopped},
	Starting:  {Running, Stopped},
	Running:   {Pausing, Capturing, Stopped},
	Pausing:   {Paused, Running, Stopped},
	Paused:    {Resuming, Capturing, Stopped},
	Resuming:  {Running, Paused, Stopped},
	Capturing: {Captured, Aborting, Running, Stopped},
	Captured:  {Voting, Aborting, Stopped},
	Voting:    {Voted, Captured, Stopped},
	Voted:     {Aborting, Releasing, Stopped},
	Aborting:  {Running, Paused, Voted, Captured, Stopped},
	Releasing: {Stopped, Voted},
	Stopped:   {Deleting},
	Deleting:  {Deleted, Stopped},
	Deleted:   {},
}

// to moves the VM. It is the only writer of vm.state; vm.mu is held.
func (vm *VM) to(next State) error {
	if !slices.Contains(transitions[vm.state], next) {
		return fmt.Errorf("VM %s is %s, which does not lead to %s: %w", vm.id, vm.state, next, errdefs.ErrFailedPrecondition)
	}
	vm.log.Debug("state", "from", vm.state, "to", next)
	vm.state = next
	return nil
}

// enter is to for a caller that does not hold the lock.
func (vm *VM) enter(next State) error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.to(next)
}

// enterFrom is enter for a call that is meant for one state only.
func (vm *VM) enterFrom(from, next State) error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.state != from {
		return fmt.Errorf("VM %s is %s, not %s: %w", vm.id, vm.state, from, errdefs.ErrFailedPrecondition)
	}
	return vm.to(next)
}

// leave ends a transitional state unless the VM has ended meanwhile.
func (vm *VM) leave(from, next State) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.state != from {
		return
	}
	if err := vm.to(next); err != nil {
		vm.log.Error("leave state", "error", err)
	}
}

// frozen reports whether an operation holds the VM, which may run, as in the passes of
// Capturing. vm.mu is held.
func (vm *VM) frozen() bool {
	switch vm.state {
	case Capturing, Captured, Voting, Voted, Aborting, Releasing:
		return true
	}
	return false
}

// status is what containerd is told.
func (s State) status() task.Status {
	switch s {
	case New, Creating, Created, Ending:
		return task.Status_CREATED
	case Pausing, Starting:
		// A boot takes long enough for containerd's restart monitor to come by: it kills
		// a task that is CREATED where it should run, and leaves one that is PAUSING alone.
		return task.Status_PAUSING
	case Paused, Resuming:
		return task.Status_PAUSED
	case Stopped, Deleting, Deleted:
		return task.Status_STOPPED
	}
	return task.Status_RUNNING
}
