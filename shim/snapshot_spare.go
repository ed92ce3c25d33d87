package shim

import (
	"errors"
	"time"
)

// cause prefers the end of the guest to what that has led to.
func (c *capture) cause(err error) error {
	vm := c.vm
	if err == nil || c.isSaved() || errors.Is(err, errEarly) || !vm.vmmGone() {
		return err
	}
	select {
	case <-vm.machine.Done():
		return vm.ending.early()
	case <-time.After(lastMoment):
		return err
	}
}

// markSaved notes that the operation does without the VMM from here on: its end is the operation's
// to tell. Who is too late for that has no VM any more.
func (c *capture) markSaved() error {
	vm := c.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	select {
	case <-vm.machine.Done():
		return vm.ending.early()
	default:
		c.saved = true
		return nil
	}
}

func (c *capture) isSaved() bool {
	vm := c.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return c.saved
}
