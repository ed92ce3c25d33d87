package shim

import "godwit.dev/godwit/shim/journal"

// write changes the VM's journal and makes it durable; see journal.Store.Update.
func (vm *VM) write(change func(*journal.Journal)) error {
	return vm.journal.Update(func(j *journal.Journal) error { change(j); return nil })
}

// prewrite is that of the journal, for a VM that stands still while the change is made. An error
// costs time only.
func (vm *VM) prewrite(change func(*journal.Journal)) {
	if err := vm.journal.Prewrite(change); err != nil {
		vm.log.Warn("draft the next journal", "error", err)
	}
}
