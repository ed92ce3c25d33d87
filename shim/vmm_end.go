package shim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/vmm"
)

// ending is the end of the VM, which happens once, whatever caused it. Package sync orders those who
// ask for it: what it changes of the VM and of its tasks, the VM's lock guards.
type ending struct {
	vm            *VM
	once, withVMM sync.Once
}

// errEarly is in the error of an operation whose VM ended before it had all of it.
var errEarly = errors.New("before its state was saved")

// early says how the guest ended, which reports its own end, or whose VMM is gone.
func (e *ending) early() error {
	how := ""
	if r := e.vm.owner.init.pump.Reported(); r != nil {
		how = fmt.Sprintf("exit %d", r.GetExitStatus())
	} else if exit := e.vm.machine.Exit(); e.poweredOff(exit) {
		how = "exit 0, powered off"
	} else {
		how = fmt.Sprintf("exit %d, VMM: status %d, %s", killed, exit.Status, exit.Reason)
	}
	return fmt.Errorf("the guest ended (%s) %w: %w", how, errEarly, errdefs.ErrAborted)
}

// poweredOff reports whether the guest has powered itself off. One with an agent reports the end of its init first,
// which counts. So a VMM that was told to end is not taken for it.
func (e *ending) poweredOff(exit vmm.Exit) bool {
	return exit.Clean && !(exit.Unsure && e.vm.spec().HasAgent())
}

// awaitOperation waits for an operation whose VM has ended too early: it lets go of what it has not got, and a client
// that hears of the end may delete the task at once.
func (e *ending) awaitOperation(ctx context.Context) {
	e.vm.mu.Lock()
	c, ended := e.vm.op.capture, e.vm.state == Stopped
	early := ended && c != nil && !c.saved
	e.vm.mu.Unlock()
	if !early {
		return
	}
	select {
	case <-c.done:
	case <-ctx.Done():
	}
}

// endWithVMM ends a VM whose VMM is gone, with the status that this means. Who comes later waits
// for the first.
func (e *ending) endWithVMM() {
	e.withVMM.Do(func() {
		ctx, cancel := context.WithTimeout(e.vm.life, endBound)
		defer cancel()
		exit := e.lastExit(ctx)
		status := uint32(killed)
		if e.poweredOff(exit) {
			status = 0
		}
		// init's own exit may be on its way: it was reported before the guest went down.
		if !e.killedForMemory(exit) {
			e.vm.log.Info("VMM ended", "status", exit.Status, "reason", exit.Reason)
		}
		if !e.vm.spec().HasAgent() {
			e.drainConsole(ctx)
			e.end(ctx, status, exit.At)
			return
		}
		select {
		case <-e.vm.owner.initDone():
		case <-time.After(exitGrace(exit.Clean)):
		}
		e.end(ctx, status, exit.At)
	})
}

// lastExit is how a VMM ended whose process is gone, and whose watcher may not have seen it yet.
func (e *ending) lastExit(ctx context.Context) vmm.Exit {
	e.vm.mu.Lock()
	machine := e.vm.machine
	e.vm.mu.Unlock()
	if err := machine.Kill(ctx); err != nil {
		e.vm.log.Error("clean up after a VMM", "error", err)
	}
	select {
	case <-machine.Done():
		return machine.Exit()
	case <-ctx.Done():
		return vmm.Exit{Status: killed, Reason: "its end was not seen", At: time.Now()}
	}
}

// lastMoment is how long the process of a VMM that answers no more may take to be gone.
const lastMoment = time.Second

// endUnusable ends a VM that cannot run on: as its VMM has ended, if it has, else by force.
func (e *ending) endUnusable(ctx context.Context) {
	select {
	case <-e.vm.machine.Done():
		e.endWithVMM()
	case <-time.After(lastMoment):
		e.end(ctx, killed, time.Now())
	}
}

// killedForMemory reports, and tells, that the host has killed the VMM for its memory.
func (e *ending) killedForMemory(exit vmm.Exit) bool {
	if exit.Clean || exit.Status >= 0 && exit.Status != killed {
		return false
	}
	c, err := cgroup.CostOf(e.vm.journal.Load().Private)
	if err != nil {
		e.vm.log.Warn("whether the host has killed the VMM for its memory is not known", "error", err)
		return false
	}
	if !e.vm.vmm.killedForMemory(c.OOMKills) {
		return false
	}
	e.vm.log.Error("VMM ended", "status", exit.Status, "reason", events.OutOfMemory, "used", c.Used, "limit", c.Limit,
		"remedy", "raise vm.overhead, or find what else takes the host's memory")
	e.vm.mu.Lock()
	defer e.vm.mu.Unlock()
	if !e.vm.owner.init.exited {
		e.vm.notify(events.StarvationTopic)
	}
	return true
}

// initGrace is for a guest that was shut down in order.
const initGrace = 2 * time.Second

// exitGrace is how long the VMM's end waits for the exit of init: finish is under way when
// the guest was shut down in order.
func exitGrace(clean bool) time.Duration {
	if clean {
		return initGrace
	}
	return 0
}
