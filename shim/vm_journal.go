package shim

import (
	"errors"

	"godwit.dev/godwit/internal/durable"
)

// write changes the VM's journal and makes it durable. On an error the journal is as
// before; where the new one had its name already and could not be made durable, the old
// one is written back as well as the disk takes it.
func (vm *VM) write(change func(*Journal)) error {
	return vm.update(func(j *Journal) error { change(j); return nil })
}

// update is write for a change that depends on what the journal says.
func (vm *VM) update(change func(*Journal) error) error {
	vm.writes.mu.Lock()
	defer vm.writes.mu.Unlock()
	next := *vm.journal
	if err := change(&next); err != nil {
		return err
	}
	draft := vm.writes.draft
	vm.writes.draft = nil
	if err := next.replace(vm.dir, draft); err != nil {
		if errors.Is(err, durable.ErrUnsynced) {
			if e := vm.journal.store(vm.dir); e != nil && !errors.Is(e, durable.ErrUnsynced) {
				err = errors.Join(err, e)
			}
		}
		return err
	}
	vm.mu.Lock()
	vm.journal = &next
	vm.mu.Unlock()
	return nil
}

// draftFile is none that anybody reads: one that is left over lies there for as long as the VM.
func draftFile(dir string) string { return durable.Unfinished(journalFile(dir) + ".draft") }

// foresee writes what the next change of the journal is expected to make of it, ahead of its
// time and without its name: the VM stands still while that change is made, and waits for one
// sync less. Another change is written as ever, and a draft that is not the change, byte by
// byte, is never used.
func (vm *VM) foresee(change func(*Journal)) {
	vm.writes.mu.Lock()
	defer vm.writes.mu.Unlock()
	next := *vm.journal
	change(&next)
	vm.writes.draft = nil
	data, err := next.encode()
	if err == nil {
		err = durable.Stage(draftFile(vm.dir), data, 0o600)
	}
	if err != nil {
		vm.log.Warn("draft the next journal", "error", err)
		return
	}
	vm.writes.draft = data
}

// noted answers the journal as it is now. It is never changed in place.
func (vm *VM) noted() *Journal {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.journal
}
