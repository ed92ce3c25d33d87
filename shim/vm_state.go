// Package shim serves containerd's task API for the tasks of one VM. VM and Task are state machines, each with its
// table: transitions and taskTransitions. What a node must know after a crash is in the journal, written before each
// effect. What a step has made, the steps after it can undo.
//
//	a task:  new -> creating -> created -> starting -> running -> stopped -> deleting -> deleted
//
//	its VM:  new -> creating -> created -> starting -> running -> stopped -> deleting -> deleted
//	                               |                    |  ^
//	                               v                    |  +-- pausing, paused, resuming: containerd's pause
//	                            ending -> stopped       v
//	                                  capturing -> captured -> voting -> voted -> releasing -> stopped
//	                                      |            |                   |
//	                                      +------------+---- aborting -----+--> running, paused
//
// Every state from starting on may lead to stopped. A VM is paused, and held by an operation,
// as a whole: its tasks go on being running.
//
// The mutex of a VM guards its fields and those of its tasks, and is never held over IO: a
// call that works enters a transitional state, lets go, works, and leaves that state. So
// State, Pids, Wait, Connect and Stats answer at any time, from what the host knows.
//
// What VM does not do itself is in two kinds of types. An operation holds the state of one run, with the VM as its
// subject: creation, starting, cloning, capture, pushing, sending, handover, arrival, adoption, filling, ending. A
// component has state for as long as the VM lives, and a lock of its own: nicSet, guestClock, vmmFacts, postcopy,
// ramTracking, machineSocket, notices. The VM's mutex may be held where one of these is looked at. A component that
// guards its fields with its own mutex does not take the VM's. A lock that orders IO, such as nicSet.plugging, is taken
// before both.
package shim

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
)

// State of the VM.
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
	Preparing State = "voting"
	Prepared  State = "voted" // the VMM is stopped; the controller decides
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
	Captured:  {Preparing, Aborting, Stopped},
	Preparing: {Prepared, Captured, Stopped},
	Prepared:  {Aborting, Releasing, Stopped},
	Aborting:  {Running, Paused, Prepared, Captured, Stopped},
	Releasing: {Stopped, Prepared},
	Stopped:   {Deleting},
	Deleting:  {Deleted, Stopped},
	Deleted:   {},
}

// setState moves the VM. It is the only writer of vm.state; vm.mu is held.
func (vm *VM) setState(next State) error {
	if !slices.Contains(transitions[vm.state], next) {
		return fmt.Errorf("VM %s is %s, which does not lead to %s: %w", vm.id, vm.state, next, errdefs.ErrFailedPrecondition)
	}
	vm.log.Debug("state", "from", vm.state, "to", next)
	vm.state = next
	return nil
}

// enterFrom is to for a call that is meant for one state only, and does not hold the lock.
func (vm *VM) enterFrom(from, next State) error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.state != from {
		return fmt.Errorf("VM %s is %s, not %s: %w", vm.id, vm.state, from, errdefs.ErrFailedPrecondition)
	}
	return vm.setState(next)
}

// leave ends a transitional state unless the VM has ended meanwhile.
func (vm *VM) leave(from, next State) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.state != from {
		return
	}
	if err := vm.setState(next); err != nil {
		vm.log.Error("leave state", "error", err)
	}
}

// over reports whether a VM has ended, or is about to before it ever ran.
func (s State) over() bool {
	switch s {
	case Ending, Stopped, Deleting, Deleted:
		return true
	}
	return false
}

// isHeld reports whether an operation holds the VM, which may run, as in the passes of
// Capturing. vm.mu is held.
func (vm *VM) isHeld() bool {
	switch vm.state {
	case Capturing, Captured, Preparing, Prepared, Aborting, Releasing:
		return true
	}
	return false
}
