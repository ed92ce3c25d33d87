package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/vmm"
)

// guard watches the VMM: its end is the end of the VM, whoever caused it, unless an operation
// decides what becomes of that.
func (vm *VM) guard() {
	vm.mu.Lock()
	machine := vm.machine
	vm.mu.Unlock()
	vm.heed(machine)
	if state, open := vm.undecided(); open {
		if exit := machine.Exit(); state != Releasing {
			vm.log.Warn("VMM ended while an operation has the VM", "status", exit.Status, "reason", exit.Reason)
		}
		return
	}
	vm.endWithVMM()
}

// undecided reports whether an operation has all of the VM, which stands still: it may go on
// elsewhere without its VMM here. Release ends the task then, with its own status, and a thaw
// that finds no VMM ends it as any other. A checkpoint's VM goes on nowhere else.
func (vm *VM) undecided() (state State, open bool) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	switch vm.state {
	case Voting, Voted, Releasing:
		open = true
	case Capturing:
		open = vm.op.capture.whole && !vm.op.capture.req.GetCheckpoint()
	case Captured:
		open = vm.op.capture != nil && vm.op.capture.digest != ""
	}
	return vm.state, open
}

// errEarly is in the error of an operation whose VM ended before it had all of it.
var errEarly = errors.New("before its state was saved")

// early says how the guest ended, which reports its own end, or whose VMM is gone.
func (vm *VM) early() error {
	how := ""
	if r := vm.owner.init.pump.Reported(); r != nil {
		how = fmt.Sprintf("exit %d", r.GetExitStatus())
	} else if exit := vm.machine.Exit(); vm.poweredOff(exit) {
		how = "exit 0, powered off"
	} else {
		how = fmt.Sprintf("exit %d, VMM: status %d, %s", killed, exit.Status, exit.Reason)
	}
	return fmt.Errorf("the guest ended (%s) %w: %w", how, errEarly, errdefs.ErrAborted)
}

// poweredOff reports whether the guest has powered itself off. One with an agent reports the end
// of its init first, which counts, so that a VMM that was told to end is not taken for it.
func (vm *VM) poweredOff(exit vmm.Exit) bool {
	return exit.Clean && !(exit.Unsure && vm.spec().HasAgent())
}

// why prefers the end of the guest to what that has led to.
func (c *capture) why(err error) error {
	vm := c.vm
	if err == nil || c.spared() || errors.Is(err, errEarly) || !vm.vmmGone() {
		return err
	}
	select {
	case <-vm.machine.Done():
		return vm.early()
	case <-time.After(lastMoment):
		return err
	}
}

// spare notes that the operation does without the VMM from here on: its end is the operation's
// to tell. Who is too late for that has no VM any more.
func (c *capture) spare() error {
	vm := c.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	select {
	case <-vm.machine.Done():
		return vm.early()
	default:
		c.whole = true
		return nil
	}
}

func (c *capture) spared() bool {
	vm := c.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return c.whole
}

// awaitOperation waits for an operation whose VM has ended too early: it lets go of what it has not got,
// and whoever hears of the end may delete the task at once.
func (vm *VM) awaitOperation(ctx context.Context) {
	vm.mu.Lock()
	c, ended := vm.op.capture, vm.state == Stopped
	early := ended && c != nil && !c.whole
	vm.mu.Unlock()
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
func (vm *VM) endWithVMM() {
	vm.ends.withVMM.Do(func() {
		ctx, cancel := context.WithTimeout(vm.life, endBound)
		defer cancel()
		exit := vm.lastExit(ctx)
		status := uint32(killed)
		if vm.poweredOff(exit) {
			status = 0
		}
		// init's own exit may be on its way: it was reported before the guest went down.
		if !vm.starved(exit) {
			vm.log.Info("VMM ended", "status", exit.Status, "reason", exit.Reason)
		}
		if !vm.spec().HasAgent() {
			vm.drainConsole(ctx)
			vm.end(ctx, status, exit.At)
			return
		}
		select {
		case <-vm.owner.initDone():
		case <-time.After(vm.grace(exit.Clean)):
		}
		vm.end(ctx, status, exit.At)
	})
}

// lastExit is how a VMM ended whose process is gone, and whose watcher may not have seen it yet.
func (vm *VM) lastExit(ctx context.Context) vmm.Exit {
	vm.mu.Lock()
	machine := vm.machine
	vm.mu.Unlock()
	if err := machine.Kill(ctx); err != nil {
		vm.log.Error("clean up behind a VMM", "error", err)
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
func (vm *VM) endUnusable(ctx context.Context) {
	select {
	case <-vm.machine.Done():
		vm.endWithVMM()
	case <-time.After(lastMoment):
		vm.end(ctx, killed, time.Now())
	}
}

// starved reports, and tells, that the host has killed the VMM for its memory.
func (vm *VM) starved(exit vmm.Exit) bool {
	if exit.Clean || exit.Status >= 0 && exit.Status != killed {
		return false
	}
	c, err := cgroup.CostOf(vm.noted().Private)
	if err != nil {
		vm.log.Warn("whether the host has killed the VMM for its memory is not known", "error", err)
		return false
	}
	if c.OOMKills <= vm.vmm.oomKills {
		return false
	}
	vm.log.Error("VMM ended", "status", exit.Status, "reason", events.OutOfMemory, "used", c.Used, "limit", c.Limit,
		"remedy", "raise vm.overhead, or find what else takes the host's memory")
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.vmm.ended = events.OutOfMemory
	if !vm.owner.init.exited {
		vm.notify(events.StarvationTopic)
	}
	return true
}

// initGrace is for a guest that was shut down in order.
const initGrace = 2 * time.Second

// grace is how long the VMM's end waits for the exit of init: finish is under way when
// the guest was shut down in order.
func (vm *VM) grace(clean bool) time.Duration {
	if clean {
		return initGrace
	}
	return 0
}

func (t *Task) initDone() <-chan struct{} { return t.init.done }

// notify tells of the VM what containerd has no event for.
func (vm *VM) notify(topic string) {
	vm.events.Notify(topic, vm.id)
}
