package shim

import (
	"context"
	"errors"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/journal"
)

// openNICs takes over those of a VMM that lives. A dead one's namespace may be gone, after a reboot of
// the host.
func (a *adoption) openNICs(ctx context.Context) error {
	vm, j := a.vm, a.j
	if len(j.Links) == 0 {
		return nil
	}
	alive, err := vmmOf(j).Alive()
	if !alive || err != nil {
		return err
	}
	netns, err := netnsOf(j)
	if err != nil {
		return err
	}
	nics, err := vm.host.Network.Open(ctx, netns, j.Links)
	if err != nil {
		return err
	}
	vm.nic.attach(nics)
	return vm.nic.serveDHCP(vm.life, j)
}

// resumeOwn takes over a VM that runs on after an abort and whose last successor died,
// perhaps before it had let the VM go on.
func (a *adoption) resumeOwn(ctx context.Context) error {
	vm, j := a.vm, a.j
	id := vm.vmmID()
	vm.machine, vm.state = newStoppedVMM(vm, id, *j.Process), Running
	alive, err := id.Alive()
	if err != nil {
		return err
	}
	if !alive {
		vm.ending.end(ctx, killed, time.Now())
		return nil
	}
	vm.postcopy.resume()
	up, err := wakeLeft(ctx, vm)
	if err != nil {
		return err
	}
	met := vm.reconnect(ctx)
	if err := vm.nic.restore(ctx); err != nil {
		vm.log.Error("plug NICs in again; it is tried while the VM runs", "error", err)
	}
	vm.startTraffic()
	vm.retryWhileRunning("set links up", up, vm.nic.up)
	vm.retryWhileRunning("meet guest", met, vm.reconnectAll)
	go vm.trimMemory()
	return nil
}

// wakeLeft is wakeMachine for a VM that may run already. A try may have halted it and got no further: it is not left so
// at once, while no vCPU was told to run.
func wakeLeft(ctx context.Context, vm *VM) (up, err error) {
	for begun := time.Now(); ; {
		vm.postcopy.halting.Lock() // the end of a fill stops the VMM that this one takes over
		up, err = vm.wakeMachine(ctx)
		vm.postcopy.halting.Unlock()
		if !untold(vm, err) || ctx.Err() != nil || time.Since(begun) > time.Duration(vm.host.Config.Timeouts.Abort) {
			return up, err
		}
		vm.log.Warn("resume: the VMM is slow; it is tried again", "error", err)
		retry.Sleep(ctx, resumeRetry)
	}
}

// resumeHold puts the VM where the journal says it is: voted, with the VMM stopped, or
// with a capture whose maker died, which is aborted. A VM that stands still for one waits as long
// for its controller as that shim would have.
func (a *adoption) resumeHold(ctx context.Context) error {
	vm, j := a.vm, a.j
	ref := &machinev1.Ref{Operation: j.Operation, Attempt: j.Attempt, Generation: j.Generation}
	c := &capture{vm: vm, ref: ref, done: make(chan struct{}), digest: j.Digest,
		resp: &machinev1.CaptureResponse{Digest: j.Digest}}
	c.inherited = time.Duration(j.Patience) * time.Millisecond
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.deadline = time.AfterFunc(c.silenceBound(), func() { c.expire() })
	c.deadline.Stop() // until it is known that a VM stands still
	close(c.done)
	vm.op.capture = c
	id := vmmOf(j)
	if j.Phase == journal.Prepared {
		// It is stopped already: this verifies it. One that is gone runs even less.
		if err := ignoreEnded(id, id.Stop(ctx)); err != nil {
			return err
		}
		vm.machine, vm.state = newStoppedVMM(vm, id, *j.Process), Prepared
		return nil
	}
	alive, err := id.Alive()
	if err != nil {
		return err
	}
	if !alive { // it died with its shim: an end like any other, unless the snapshot is complete
		vm.machine, vm.state = newStoppedVMM(vm, id, *j.Process), Captured
		if j.Digest == "" {
			vm.ending.end(ctx, killed, time.Now())
		}
		return nil
	}
	m, err := a.adoptVMM(ctx, func() {})
	if err != nil {
		return err
	}
	vm.machine, vm.state = m, Captured
	c.deadline.Reset(c.silenceBound())
	go vm.watchVMM()
	return nil
}

// reconnect finds the guest's init again after an adopted VM runs on: its exit is the
// task's.
func (vm *VM) reconnect(ctx context.Context) error {
	vm.mu.Lock()
	machine, known := vm.machine, vm.owner.init.started
	vm.mu.Unlock()
	if known {
		return nil
	}
	agent, err := vm.dial(ctx, machine, client.Offsets{}, nil)
	if err != nil {
		return err
	}
	all, err := agent.Processes(ctx, &agentv1.ProcessesRequest{})
	if err != nil {
		return errors.Join(err, agent.Close())
	}
	st, members := vm.owner.reopenStreams(), vm.pod.reopen()
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.agent = agent
	for _, p := range all.GetProcesses() {
		if p.GetId() == vm.owner.init.guest {
			vm.owner.init.attach(p, st)
		}
	}
	vm.pod.reconnect(all.GetProcesses(), members)
	return nil
}
