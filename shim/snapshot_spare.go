package shim

import (
	"errors"
	"time"
)

// why prefers the end of the guest to what that has led to.
func (c *capture) why(err error) error {
	vm := c.vm
	if err == nil || c.spared() || errors.Is(err, errEarly) || !vm.vmmGone() {
		return err
	}
	select {
	case <-vm.machine.Done():
		return vm.ending.early()
	case <-time.After(lastMoment):
		return err
	}
}

// spare notes that the operation does without the VMM from here on: its end is the operation's
// to tell. Who is too late for that has no VM any more.
func (c *capture) spare() error {
	vm := c.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	select {
	case <-vm.machine.Done():
		return vm.ending.early()
	default:
		c.whole = true
		return nil
	}
}

func (c *capture) spared() bool {
	vm := c.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return c.whole
}
