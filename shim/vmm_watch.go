package shim

import (
	"godwit.dev/godwit/vmm"
)

// vmmWatch is the watch over one VMM of the VM, from its start, or its adoption, to its end.
type vmmWatch struct {
	vm      *VM
	machine vmm.Machine
}

// watchVMM watches the VMM: its end is the end of the VM, whatever caused it, unless an operation decides what becomes
// of that.
func (vm *VM) watchVMM() {
	vm.mu.Lock()
	machine := vm.machine
	vm.mu.Unlock()
	w := &vmmWatch{vm, machine}
	w.awaitExit()
	if state, open := w.operationDecides(); open {
		if exit := machine.Exit(); state != Releasing {
			vm.log.Warn("VMM ended while an operation has the VM", "status", exit.Status, "reason", exit.Reason)
		}
		return
	}
	vm.ending.endWithVMM()
}

// operationDecides reports whether an operation has all of the VM, which stands still: it may go on
// elsewhere without its VMM here. Release ends the task then, with its own status, and a resume
// that finds no VMM ends it as any other. A checkpoint's VM goes on nowhere else.
func (w *vmmWatch) operationDecides() (state State, open bool) {
	w.vm.mu.Lock()
	defer w.vm.mu.Unlock()
	switch w.vm.state {
	case Preparing, Prepared, Releasing:
		open = true
	case Capturing:
		open = w.vm.op.capture.saved && !w.vm.op.capture.req.GetCheckpoint()
	case Captured:
		open = w.vm.op.capture != nil && w.vm.op.capture.digest != ""
	}
	return w.vm.state, open
}

func (t *Task) initDone() <-chan struct{} { return t.init.done }

// notify tells of the VM what containerd has no event for.
func (vm *VM) notify(topic string) {
	vm.events.Notify(topic, vm.id)
}

// awaitExit hears of stops that this shim has not ordered, until the VMM is gone. Such a stop is that of a VM whose
// disk is full on the host.
func (w *vmmWatch) awaitExit() {
	machine := w.machine
	stopped := false
	for {
		select {
		case <-machine.Done():
			return
		case e, ok := <-machine.Events():
			if !ok {
				<-machine.Done()
				return
			}
			switch {
			case e.Kind == vmm.Paused:
				stopped = w.vm.inState(Running)
			case e.Kind == vmm.Resumed && stopped:
				stopped = false
				w.vm.clock.noteResumed()
			}
		}
	}
}
