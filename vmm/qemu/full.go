package qemu

import (
	"context"
	"encoding/json"
	"time"

	"godwit.dev/godwit/vmm/qemu/qmp"
)

// QEMU stops a VM whose disk finds no space on the host, with the write kept, where an
// error would damage the guest's file system. The VM goes on when the write fits.

// fullRetry is the pause between two tries. A variable for the tests.
var fullRetry = time.Second

// stallBound is how long one try may take. A variable for the tests.
var stallBound = commandTimeout

// statusIOError is QEMU's word for a VM that it stopped so.
const statusIOError = "io-error"

// noSpace reports whether QEMU says that it stopped the VM for want of space.
func noSpace(e qmp.Event) (device string, ok bool) {
	var data struct {
		Action string `json:"action"`
		Device string `json:"node-name"`
		Full   bool   `json:"nospace"`
	}
	if e.Name != "BLOCK_IO_ERROR" || json.Unmarshal(e.Data, &data) != nil {
		return "", false
	}
	return data.Device, data.Action == "stop" && data.Full
}

// awaitSpaceOnce begins to wait for space, unless somebody does already; m.mu is held.
func (m *Machine) awaitSpaceOnce(device string) {
	m.stalls++
	if m.waiting {
		return
	}
	m.waiting = true
	m.log.Warn("the disk has no space on the host: the VM stands still until there is some", "disk", device)
	go m.awaitSpace()
}

// awaitSpace lets the VM go on, again and again, until it stays running or is not to. No answer says neither.
func (m *Machine) awaitSpace() {
	m.mu.Lock()
	seen := m.stalls
	m.mu.Unlock()
	for said := ""; ; {
		select {
		case <-m.done:
			return
		case <-m.qmp.Done(): // QEMU has ended, or this Machine cannot tell it anything any more
			m.mu.Lock()
			m.waiting = false
			m.mu.Unlock()
			m.log.Warn("the VM's wait for space ends with its monitor's connection", "error", m.qmp.Err())
			return
		case <-time.After(fullRetry):
		}
		status, err := m.retryStalled()
		m.mu.Lock()
		if m.detached || m.stalls == seen && (m.held || err == nil && status != statusIOError) {
			m.waiting = false
			m.mu.Unlock()
			m.log.Info("the VM no longer waits for space on the host", "status", status)
			return
		}
		seen = m.stalls
		m.mu.Unlock()
		if err != nil && err.Error() != said {
			said = err.Error()
			m.log.Warn("ask whether the VM waits for space", "error", err)
		}
	}
}

// retryStalled lets a stalled VM go on if it is to run, and answers what it did before that.
func (m *Machine) retryStalled() (string, error) {
	m.order.Lock()
	defer m.order.Unlock()
	m.mu.Lock()
	held := m.held || m.detached
	m.mu.Unlock()
	if held {
		return "not to run", nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stallBound)
	defer cancel()
	status, err := m.status(ctx)
	if err != nil || status != statusIOError {
		return status, err
	}
	if err := m.execute(ctx, "cont", nil, nil); err != nil {
		m.log.Warn("let the VM go on", "error", err)
	}
	return status, nil
}
