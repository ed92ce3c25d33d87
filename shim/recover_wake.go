package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/stdio"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/vmm"
)

// A shim may die between the commit of a wake and the end of Start. The VM that it leaves is this node's, whole, and
// perhaps runs: it has no snapshot to go back to any more. Its successor takes the wake to its end, from whichever step
// it had come to. Each step may be taken again: to resume what runs, to ask who the guest is, and to plug in what it
// lacks.

// wakeCommitted reports whether a wake is committed that has not come to an end, of a VM that is
// there. With a dead VMM there is nothing to finish.
func wakeCommitted(j *journal.Journal) (bool, error) {
	if !j.Waking || j.Phase != journal.Own || j.Process == nil {
		return false, nil
	}
	alive, err := vmmOf(j).Alive()
	if err != nil {
		return false, fmt.Errorf("its VMM: %w", err)
	}
	return alive, nil
}

// takeOver puts the VM where the Start of its wake was.
func (a *adoption) takeOver(ctx context.Context) (err error) {
	vm := a.vm
	vm.origin.restored, vm.state, vm.owner.state = true, Starting, TaskStarting
	vm.machine, err = a.adoptVMM(ctx, vm.postcopy.resume) // QEMU may wait for a page, and answers no call before
	return err
}

// adoptVMM lets the VMM go on and reaches it: the vote of an operation may have stopped it without a word to its
// client. The function ready is called before the VMM is asked anything.
func (a *adoption) adoptVMM(ctx context.Context, ready func()) (vmm.Machine, error) {
	vm, id := a.vm, vmmOf(a.j)
	if err := ignoreEnded(id, id.Continue()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(vm.host.Config.Timeouts.Abort))
	defer cancel()
	driver, err := vm.driver(ctx)
	if err != nil {
		return nil, err
	}
	ready()
	return driver.Adopt(ctx, leftVMM(a.j))
}

// leftVMM is the VMM that a shim has left. An operation, or the end of a fill, may have paused it. A pause that fails
// half way lets vCPUs stand still in a VM that is said to run. While a wake is not over, or pages are to come, no
// pause was under way. A vCPU that waits for a page cannot be paused.
func leftVMM(j *journal.Journal) vmm.Process {
	p := *j.Process
	p.Halting = !j.Waking && j.Postcopy == nil || j.Postcopy != nil && j.Postcopy.Whole
	return p
}

// finishWake takes the wake of a dead shim to its end. What fails now ends the VM, as it
// would have under that shim, and the record hears so.
func (a *adoption) finishWake(ctx context.Context) {
	vm := a.vm
	j := vm.journal.Load()
	if !vm.inState(Starting) {
		return
	}
	s := &starting{
		vm: vm, task: vm.owner, detach: func() bool { return true },
		readdress: j.Readdressed, plugs: j.Unplugged, ran: true, opened: j.Generation - 1,
	}
	ctx, cancel := abortable(ctx, s)
	defer cancel()
	s.late = time.AfterFunc(time.Duration(vm.host.Config.Timeouts.Boot), s.boundAfterFill(s.abort))
	defer s.release()
	vm.mu.Lock()
	s.task.abortStart, s.task.startOver = cancel, make(chan struct{})
	vm.mu.Unlock()
	defer close(s.task.startOver)
	begun := time.Now()
	err := steps.Run(ctx, new(steps.Undo), undoBound, s.stepsAfterCommit())
	vm.observe(time.Since(begun), err != nil, s.address)
	if err != nil {
		err = sayLate(ctx, s, err)
		err = errors.Join(fmt.Errorf("finish the wake of a shim that died: %w", err), s.giveUp(ctx, err))
		vm.log.Error("wake", "operation", j.Operation, "error", err)
		return
	}
	vm.log.Info("the wake of a shim that died is finished", "operation", j.Operation, "attempt", j.Attempt)
	vm.pod.keepEnds(&j.Resume)
	s.startTraffic()
	vm.pod.settle(ctx)
}

// stepsAfterCommit are the steps of a Start of a restored VM from the commit on.
func (s *starting) stepsAfterCommit() []steps.Step {
	if !s.vm.spec().HasAgent() {
		return []steps.Step{
			steps.New("open stdio", s.reopen),
			steps.New("open console", s.connect),
			steps.New("resume", s.resumeGuest),
			steps.New("take up console", s.settleVMDisk),
			steps.New("plug NICs in", s.plug),
			steps.New("run", s.run),
		}
	}
	return []steps.Step{
		steps.New("open stdio", s.reopen),
		steps.New("resume", s.resumeGuest),
		steps.New("meet guest", s.connect),
		steps.New("prove the guest", s.verifyGuest),
		steps.New("plug NICs in", s.plug),
		steps.New("run", s.run),
	}
}

// reopen is open for a task whose client may have gone with it.
func (s *starting) reopen(context.Context, *steps.Undo) error {
	s.streams = s.task.reopenStreams()
	s.offerFifos()
	return s.openMembers(func(t *Task) (*stdio.Streams, error) { return t.reopenStreams(), nil })
}

// startTraffic lets everything flow after a Start that has succeeded.
func (s *starting) startTraffic() {
	vm := s.vm
	if vm.origin.restored {
		_ = vm.journal.owe("that the VM is awake", func(j *journal.Journal) {
			if j.Phase == journal.Own { // else an operation has it by now, and has said so
				j.Waking, j.Readdressed, j.Resume = false, false, journal.Resume{}
			}
		})
	}
	vm.startTraffic()
	s.woken.settle(s)
	if s.flows != nil {
		s.flows()
	}
	go vm.watchVMM()
	go vm.trimMemory()
}
