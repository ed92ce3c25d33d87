package shim

import (
	"time"

	"godwit.dev/godwit/shim/starts"
)

// observe notes one start where the node's daemon counts it.
func (vm *VM) observe(took time.Duration, failed bool) {
	mode := starts.Boot
	if vm.restored {
		mode = starts.Restore
	}
	vm.log.Info("start", "mode", mode, "took", took, "failed", failed)
	o := starts.Observation{Mode: mode, Seconds: took.Seconds(), Failed: failed}
	if err := starts.Note(starts.File(vm.host.Config.StateDir), o); err != nil {
		vm.log.Warn("note start", "error", err)
	}
}
