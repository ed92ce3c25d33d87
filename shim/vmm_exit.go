package shim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/journal"
)

// endBound is how long the end of a VM may take in all. A variable for the tests.
var endBound = 20 * time.Second

// Parts of it, of which what comes after may need some too.
const (
	execsBound = 3 * time.Second // the ends of execs
	syncBound  = 5 * time.Second // the guest writes its disks back
)

// finish ends the VM after its init: the other processes first, the VMM next, init's
// exit last.
func (t *Task) finish(status uint32, at time.Time) {
	vm := t.vm
	vm.pod.flush(vm.life)
	ctx, cancel := context.WithTimeout(vm.life, endBound)
	defer cancel()
	vm.ending.endExecs(ctx)
	t.refreshStats(ctx)
	vm.ending.drainGuest(ctx)
	if agent := vm.guest(); agent != nil {
		sync, cancel := context.WithTimeout(ctx, syncBound)
		if _, err := agent.Shutdown(sync, &agentv1.ShutdownRequest{}); err != nil {
			vm.log.Debug("shut guest down", "error", err)
		}
		cancel()
	}
	vm.ending.end(ctx, status, at)
}

// endExecs ends the execs of all tasks; what is left then ends with the VM.
func (e *ending) endExecs(ctx context.Context) { e.endExecsOf(ctx, e.vm.allTasks()...) }

// endExecsOf kills the execs of tasks that run and waits a little for their exits, which the guest reports.
func (e *ending) endExecsOf(ctx context.Context, tasks ...*Task) {
	ctx, cancel := context.WithTimeout(ctx, execsBound)
	defer cancel()
	e.vm.mu.Lock()
	var live []*process
	for _, p := range e.vm.execs() {
		// What one that has ended wrote is read by no process.
		if slices.Contains(tasks, p.task) && p.started && !p.exited && p.pump.Reported() == nil {
			live = append(live, p)
		}
	}
	agent := e.vm.agent
	e.vm.mu.Unlock()
	for _, p := range live {
		if _, err := agent.Kill(ctx, &agentv1.KillRequest{Id: p.guest, Signal: 9}); err != nil {
			e.vm.log.Debug("kill exec", "exec", p.id, "error", err)
		}
	}
	for _, p := range live {
		select {
		case <-p.done:
		case <-ctx.Done():
		}
	}
}

// drainGuest takes the output that was not read yet from the guest. It leaves time for the guest's own end.
func (e *ending) drainGuest(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endBound/2)
	defer cancel()
	e.vm.mu.Lock()
	agent, all := e.vm.agent, e.vm.processes()
	e.vm.mu.Unlock()
	if agent == nil {
		return
	}
	var pulls sync.WaitGroup
	for _, p := range all {
		if p.pump != nil {
			pulls.Go(func() { p.pump.DrainGuest(ctx, agent) })
		}
	}
	pulls.Wait()
}

// end kills the VMM and the sandbox process, frees the RAM, and reports every exit, init's last. It is safe to call
// from several ends at once: the first one's status counts. A VMM that does not die, such as one that waits for a disk
// in the kernel, holds up no caller longer than the bound. Delete asks for its end again.
func (e *ending) end(ctx context.Context, status uint32, at time.Time) {
	e.once.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, endBound)
		defer cancel()
		e.vm.pod.abandonCreations()
		if err := e.stopMachine(ctx); err != nil {
			e.vm.log.Error("end VM", "error", err)
		}
		e.noteEnds(status, at)
		e.vm.mu.Lock()
		defer e.vm.mu.Unlock()
		if e.vm.traffic.cancel != nil {
			e.vm.traffic.cancel()
		}
		for _, p := range e.vm.processes() {
			s, when := status, at
			switch {
			case p.left:
				s = movedStatus
			case p.id != "":
				s = killed
			case p.task.member != nil:
				s = e.vm.memberStatus(status)
			}
			s, when = p.reported(s, when)
			if p.pump != nil {
				p.pump.EndWithVM()
			}
			p.task.exit(p, s, when)
		}
		err := e.vm.setState(Stopped)
		for _, t := range e.vm.tasks {
			if !t.state.over() {
				err = errors.Join(err, t.setState(TaskStopped))
			}
		}
		if err != nil {
			e.vm.log.Error("end VM", "error", err)
		}
	})
}

// reported is the end that the guest has told of a process, else that of its VM. One that left ends there, its output
// too. vm.mu is held.
func (p *process) reported(status uint32, at time.Time) (uint32, time.Time) {
	if p.pump == nil || p.left {
		return status, at
	}
	if r := p.pump.Reported(); r != nil {
		return r.GetExitStatus(), time.Unix(0, r.GetExitedAtUnixNano())
	}
	return status, at
}

// noteEnds writes down how the VM's tasks end, for who finds no shim any more.
func (e *ending) noteEnds(status uint32, at time.Time) {
	j := e.vm.journal.Load()
	ends := map[string]journal.Exit{j.Bundle: {Status: status, At: at}}
	for _, t := range e.vm.allTasks() {
		if t.member != nil && !t.member.hasEnded() {
			e.vm.mu.Lock()
			own, when := t.init.reported(e.vm.memberStatus(status), at) // of a pod that stood still until now
			e.vm.mu.Unlock()
			ends[t.bundle.Dir] = journal.Exit{Status: own, At: when}
		}
	}
	for bundle, end := range ends {
		if err := journal.WriteExit(bundle, end); err != nil {
			e.vm.log.Debug("note end", "error", err) // of an adopted VM, whose bundle is gone
		}
	}
}

// memberStatus is how the containers of a pod end with its VM: like the VM if it is a snapshot's or another node's by
// now, where they go on.
func (vm *VM) memberStatus(status uint32) uint32 {
	if j := vm.journal.Load(); j != nil && j.Phase == journal.Released {
		return status
	}
	return killed
}

// stopMachine ends the VMM and the talk with the guest, and gives its RAM back. A VMM that does not
// end has its RAM still: that counts as taken until Delete has seen it end.
func (e *ending) stopMachine(ctx context.Context) error {
	e.vm.mu.Lock()
	machine, agent, j := e.vm.machine, e.vm.agent, e.vm.journal.Load()
	e.vm.mu.Unlock()
	var err error
	if machine != nil {
		e.vm.postcopy.stop(ctx)
		err = machine.Kill(ctx)
	}
	if agent != nil {
		agent.Close()
	}
	if j == nil || err != nil {
		return err
	}
	return errors.Join(removeFile(j.RAM), removeTables(j), e.endSandbox(ctx, j))
}

// endSandbox ends the process whose pid the task shows: clients take the pid of a task that has ended for a free one.
// A network namespace of the VM's own ends with it, unless others are in it: what the VM has there goes first.
func (e *ending) endSandbox(ctx context.Context, j *journal.Journal) error {
	if strings.HasPrefix(j.NetNS, "/proc/") {
		if err := detach(ctx, e.vm.host, j, j.Links); err != nil {
			return fmt.Errorf("detach network: %w", err)
		}
	}
	return errors.Join(sandboxOf(j).Kill(ctx), endHolders(ctx, j))
}
