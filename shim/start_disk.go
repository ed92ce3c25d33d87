package shim

import (
	"path/filepath"
)

// keepDisk has the next task of the container find what a VM that woke has written: its disk is in the directory of the
// VM, which goes with the task.
func (s *starting) keepDisk() {
	vm := s.vm
	sp, j := vm.spec(), vm.journal.Load()
	if !vm.origin.restored || !sp.HasAgent() {
		return
	}
	for _, d := range j.Disks {
		if sp.Container == nil || d.ID != sp.Container.Writable {
			continue
		}
		if err := vm.host.Disks.KeepWoken(vm.namespace, vm.id, filepath.Join(vm.dir, "disks"), d.Path); err != nil {
			vm.log.Warn("a new task of the container will not find what the VM writes", "error", err)
		}
	}
}
