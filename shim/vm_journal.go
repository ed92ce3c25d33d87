package shim

import (
	"sync"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/journal"
)

// vmJournal is the journal of a VM. What the disk did not take it has once it has room.
type vmJournal struct {
	journal.Store
	vm *VM

	mu       sync.Mutex
	settling bool // a goroutine tries
}

// write changes the VM's journal and makes it durable; see journal.Store.Update.
func (vm *VM) write(change func(*journal.Journal)) error {
	return vm.journal.Update(func(j *journal.Journal) error { change(j); return nil })
}

// Update is that of the store. A new journal that could not be taken back from the disk is replaced when there is room.
func (j *vmJournal) Update(change func(*journal.Journal) error) error {
	err := j.Store.Update(change)
	if err != nil && j.Unwritten() != nil {
		j.settle()
	}
	return err
}

// owe is write for what is so already: memory says it from now on, and a disk that does not take it has it when it has
// room. A successor must be safe with the journal as it was.
func (j *vmJournal) owe(what string, change func(*journal.Journal)) error {
	err := j.Owe(change)
	if err != nil {
		j.vm.log.Error("the journal on disk is old; it is written when the disk takes it", "lacks", what, "error", err)
		j.settle()
	}
	return err
}

// settle tries until the disk has what memory has, or the shim ends.
func (j *vmJournal) settle() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.settling {
		return
	}
	j.settling = true
	go func() {
		for ctx := j.vm.life; ctx.Err() == nil && !j.whole(); {
			retry.Sleep(ctx, resumeRetry)
			if err := j.Settle(); err == nil {
				j.vm.log.Info("the journal on disk is whole again")
			}
		}
	}()
}

// whole reports whether there is nothing to write, and lets the next one that finds something try.
func (j *vmJournal) whole() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.settling = j.Unwritten() != nil
	return !j.settling
}

// prewrite is that of the journal, for a VM that stands still while the change is made. An error
// costs time only.
func (vm *VM) prewrite(change func(*journal.Journal)) {
	if err := vm.journal.Prewrite(change); err != nil {
		vm.log.Warn("draft the next journal", "error", err)
	}
}
