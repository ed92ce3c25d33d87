package shim

import (
	"time"

	"godwit.dev/godwit/shim/starts"
)

// observe notes one start where the node's daemon counts it.
func (vm *VM) observe(took time.Duration, failed bool, address starts.Address) {
	mode := starts.Boot
	if vm.origin.restored {
		mode = starts.Restore
	}
	if vm.vmm.copied() {
		mode = starts.Clone
	}
	vm.log.Info("start", "mode", mode, "took", took, "failed", failed)
	vm.note(starts.Observation{Mode: mode, Seconds: took.Seconds(), Failed: failed, Address: address})
}

func (vm *VM) note(o starts.Observation) {
	if err := starts.Note(starts.File(vm.host.Config.StateDir), o); err != nil {
		vm.log.Warn("note start", "error", err)
	}
}
