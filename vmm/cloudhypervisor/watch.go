package cloudhypervisor

import (
	"errors"
	"os"
	"strings"
	"time"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/process"
)

// ending is what the guest did to end the VM.
type ending int

const (
	unknown ending = iota
	poweredOff
	reset
	panicked
)

// Events gives hints; a slow reader loses some.
func (m *Machine) Events() <-chan vmm.Event { return m.events }

// Done is closed when the process is gone and what it left is removed.
func (m *Machine) Done() <-chan struct{} { return m.done }

// Exit is valid once Done is closed.
func (m *Machine) Exit() vmm.Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.exit
}

// Detach leaves the VM to a process that adopts it, as the end of this process would. Of m only Process may be called
// afterwards; Done is never closed.
func (m *Machine) Detach() error {
	m.mu.Lock()
	m.detached = true
	m.mu.Unlock()
	return errors.Join(m.stop(), m.proc.Close())
}

// follow begins to read what the VMM reports and to wait for its end.
func (m *Machine) follow(events *os.File) {
	m.stop = events.Close
	go func() {
		defer close(m.reader)
		readEvents(events, m.handle)
	}()
	go m.watch()
}

// handle runs on the reader: it must not block.
func (m *Machine) handle(e event) {
	m.waiters.Tell(e)
	if e.is("vm", "rebooted") {
		if err := m.publish(); err != nil {
			m.log.Error("move sockets of VMM", "error", err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out := vmm.Event{Time: time.Now()}
	switch {
	case e.is("vm", "paused"):
		out.Kind = vmm.Paused
	case e.is("vm", "resumed"), e.is("vm", "booted"):
		out.Kind = vmm.Resumed
	case e.is("vm", "device-removed"):
		id, ok := cutNIC(e.Properties["id"])
		if !ok {
			return
		}
		out.Kind, out.Device = vmm.DeviceRemoved, id
	case e.is("vm", "rebooting"):
		out.Kind = vmm.Reset
		if !m.info.Reboots {
			m.end(reset)
		}
	case e.is("guest", "panic"):
		out.Kind, out.Reason = vmm.Panicked, e.Properties["event"]
		m.end(panicked)
	case e.is("vmm", "shutdown") && m.ending == unknown:
		out.Kind, m.ending = vmm.PoweredOff, poweredOff
	default:
		return
	}
	select {
	case m.events <- out:
	default:
	}
}

// end makes sure that a guest that was reset or has panicked does not go on. Without us
// a reset ends the VMM too, since it finds no kernel; a panic waits for who adopts it.
func (m *Machine) end(how ending) {
	m.ending = how
	if err := m.proc.Kill(); err != nil {
		m.log.Error("kill VMM", "error", err)
	}
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
	<-m.reader // the pipe of a dead process ends: all that it said is read
	m.recordExit(at)
}

func (m *Machine) recordExit(at time.Time) {
	log := logTail(m.Process().Dir)
	m.mu.Lock()
	m.exit = exitOf(m.ending, m.proc.Status(), log)
	m.exit.At = at
	if m.exit.Clean && m.ending == unknown { // its last word was lost
		select {
		case m.events <- vmm.Event{Kind: vmm.PoweredOff, Time: at}:
		default:
		}
	}
	info := m.info
	m.mu.Unlock()
	m.turn <- struct{}{} // a caller that still waits for an answer is told of its end by the socket
	err := errors.Join(m.stop(), cleanUp(info.Dir, info.Agent, info.Serial))
	if m.plan != nil {
		err = errors.Join(err, m.plan.close())
	}
	<-m.turn
	if err != nil {
		m.log.Warn("clean up after VMM", "error", err)
	}
	// Kill may still hold the pidfd: closing it does not block and breaks nothing.
	if err := m.proc.Close(); err != nil {
		m.log.Warn("close pidfd of VMM", "error", err)
	}
	close(m.events)
	close(m.done)
}

// What the VMM logs of a vCPU that KVM cannot run. It ends then as after a power-off. KVM says badAddress, too, of a
// page of RAM that there is no room for.
const (
	vcpuFailed = "VCPU generated error"
	badAddress = "Bad address" // EFAULT
)

// exitOf judges by what the guest did, by the exit status, -1 if unknown, and by the end of the log.
func exitOf(how ending, status int, log string) vmm.Exit {
	failed := strings.LastIndex(log, vcpuFailed)
	switch {
	case failed >= 0 && how != reset && how != panicked && status <= 0:
		text := strings.TrimSpace(log[failed:])
		if strings.Contains(text, badAddress) {
			text = "there may be no room left for its RAM (ram_size): " + text
		}
		return vmm.Exit{Status: 1, Reason: text}
	case how == reset:
		return vmm.Exit{Status: 1, Reason: "reset by the guest"}
	case how == panicked:
		return vmm.Exit{Status: 1, Reason: "guest panicked"}
	case how == poweredOff && status <= 0, status == 0:
		return vmm.Exit{Clean: true, Unsure: true, Reason: "powered off by the guest, or told to end from outside"}
	case status == process.BusError:
		return vmm.Exit{Status: status, Reason: process.NoRoom}
	case status > 128:
		return vmm.Exit{Status: status, Reason: "VMM killed by a signal"}
	case status < 0:
		return vmm.Exit{Status: 255, Reason: "VMM ended, status unknown"}
	}
	return vmm.Exit{Status: status, Reason: "VMM ended by itself"}
}
