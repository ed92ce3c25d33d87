package qemu

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/process"
	"godwit.dev/godwit/vmm/qemu/qmp"
)

// shutdown is the data of QEMU's SHUTDOWN event.
type shutdown struct {
	Reason string `json:"reason"`
}

const (
	guestShutdown = "guest-shutdown"
	guestReset    = "guest-reset"
	guestPanic    = "guest-panic"
)

// Events gives hints; a slow reader loses some.
func (m *Machine) Events() <-chan vmm.Event { return m.events }

// Done is closed when the process is gone and its sockets are removed.
func (m *Machine) Done() <-chan struct{} { return m.done }

// Exit is valid once Done is closed.
func (m *Machine) Exit() vmm.Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.exit
}

// Detach leaves the VM to the process that adopts it, as the end of this process would. Of m
// only Process may be called afterwards; Done is never closed.
func (m *Machine) Detach() error {
	m.mu.Lock()
	m.detached = true
	m.mu.Unlock()
	return errors.Join(m.qmp.Close(), m.proc.Close(), m.closeIncoming())
}

// handle runs on the connection's reader: it must not block.
func (m *Machine) handle(e qmp.Event) {
	m.waiters.Tell(e)
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Name == "SHUTDOWN" {
		// What does not decode leaves the reason empty: the exit is then not clean.
		_ = json.Unmarshal(e.Data, &m.shutdown)
	}
	if device, ok := noSpace(e); ok {
		m.awaitSpaceOnce(device)
	}
	event, ok := translate(e)
	if !ok {
		return
	}
	select {
	case m.events <- event:
	default:
	}
}

func translate(e qmp.Event) (vmm.Event, bool) {
	var data struct {
		Reason string `json:"reason"`
		Action string `json:"action"`
		Device string `json:"device"`
	}
	_ = json.Unmarshal(e.Data, &data)
	event := vmm.Event{Reason: data.Reason, Time: e.Time}
	switch {
	case e.Name == "STOP":
		event.Kind = vmm.Paused
	case e.Name == "RESUME":
		event.Kind = vmm.Resumed
	case e.Name == "SHUTDOWN" && data.Reason == guestShutdown:
		event.Kind = vmm.PoweredOff
	case e.Name == "SHUTDOWN" && data.Reason == guestReset:
		event.Kind = vmm.Reset
	case e.Name == "GUEST_PANICKED":
		event.Kind, event.Reason = vmm.Panicked, data.Action
	case e.Name == "DEVICE_DELETED" && data.Device != "":
		// An earlier one of the same device names its backend, without a device.
		_, id, _ := strings.Cut(data.Device, "-")
		event.Kind, event.Device = vmm.DeviceRemoved, id
	default:
		return event, false
	}
	return event, true
}

// watch waits for the end of the process, then cleans up after it.
func (m *Machine) watch() {
	p := m.Process()
	warn := func(err error) { m.log.Warn("rotate log of VMM", "error", err) }
	if err := m.proc.WaitRotating(warn, logPath(p.Dir), p.Console); err != nil {
		m.mu.Lock()
		detached := m.detached
		m.mu.Unlock()
		if !detached {
			m.log.Error("watch VMM", "error", err)
		}
		return
	}
	at := time.Now()
	// The socket of a dead process ends: all that QEMU said is read by then.
	<-m.qmp.Done()
	m.mu.Lock()
	m.exit = exitOf(m.shutdown.Reason, exitStatus(m.proc.Status(), logTail(p.Dir)))
	m.exit.At = at
	info := m.info
	m.mu.Unlock()
	if err := errors.Join(m.closeIncoming(), m.qmp.Close(),
		process.RemoveSockets(sockets(info.Control, info.Agent, info.Serial)...)); err != nil {
		m.log.Warn("remove sockets of VMM", "error", err)
	}
	// Kill may still hold the pidfd: closing it waits for no process and breaks nothing.
	if err := m.proc.Close(); err != nil {
		m.log.Warn("close pidfd of VMM", "error", err)
	}
	close(m.events)
	close(m.done)
}

// exitStatus is the status of a QEMU that raises SIGBUS at itself. With KVM it does so for a page
// that there is no room for. Process 1 of a pid namespace does not die of that: QEMU says so and
// aborts, of which there is SIGSEGV left.
func exitStatus(status int, log string) int {
	if status == 128+int(unix.SIGSEGV) && strings.Contains(log, "Failed to re-raise SIGBUS") {
		return process.BusError
	}
	return status
}

// exitOf judges by what QEMU said last and by the exit status, -1 if unknown.
func exitOf(reason string, status int) vmm.Exit {
	switch {
	case reason == guestShutdown && status <= 0:
		return vmm.Exit{Clean: true, Reason: "powered off by the guest"}
	case reason == guestReset:
		return vmm.Exit{Status: max(status, 0), Reason: "reset by the guest"}
	case reason == guestPanic:
		return vmm.Exit{Status: max(status, 1), Reason: "guest panicked"}
	case status == process.BusError:
		return vmm.Exit{Status: status, Reason: process.NoRoom}
	case status > 128:
		return vmm.Exit{Status: status, Reason: "VMM killed by a signal"}
	case status < 0:
		return vmm.Exit{Status: 255, Reason: "VMM ended, status unknown"}
	}
	return vmm.Exit{Status: status, Reason: "VMM ended by itself: " + reason}
}
