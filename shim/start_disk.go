package shim

import (
	"path/filepath"

	"godwit.dev/godwit/shim/journal"
)

// keepDisks has the next task of the container find what a VM that woke has written: its disks are in the directory of
// the VM, which goes with the task. Those of a VM that was booted have their place already.
func keepDisks(host *Host, dir string, j *journal.Journal) error {
	if j.Spec == nil || j.Phase != journal.Own && j.Phase != journal.Sending {
		return nil // a snapshot, or another node, has what it wrote, or it never ran
	}
	if j.Spec.Pod != nil { // no container finds it: each has what it writes below the pod's own disk
		return nil
	}
	set := &DiskSet{Disks: j.Spec.Disks, Files: j.Disks}
	if c := j.Spec.Container; c != nil {
		set.Layers, set.Writable = c.Layers, c.Writable
	}
	return host.Disks.KeepWoken(j.Spec.Namespace, j.Spec.ID, filepath.Join(dir, "disks"), set)
}

// keepDisk is keepDisks of a VM that runs: its end tries again, so that an error loses nothing yet.
func (s *starting) keepDisk() {
	if vm := s.vm; vm.origin.restored {
		if err := keepDisks(vm.host, vm.dir, vm.journal.Load()); err != nil {
			vm.log.Warn("keep the disk for the next task of the container", "error", err)
		}
	}
}
