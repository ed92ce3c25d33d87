package shim

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/guesttool"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/stdio"
)

// An exec that runs goes along with a VM that moves: its process is in the guest. What the
// shim there has to know of it is in Resume. No client is attached to it there: its output
// goes where the task's goes, its stdin stays open until somebody closes it. A client may
// attach to it there, by fifos of its own.

// movedStatus is the status of an exec at the node that it has left: how it ends is not known
// there. containerd's clients call that one unknown.
const movedStatus = 255

// movedExecs are the execs that run, of a VM whose traffic stands still. One whose end the
// guest has told, and containerd not yet, is among them. A tool is not: what it writes is for the
// client that is here, and would go to the task's log there. The guest's is ended there as a stray.
func (s *livePause) movedExecs() (all []journal.MovedExec) {
	vm := s.vm
	vm.mu.Lock()
	live := slices.DeleteFunc(vm.processes(), func(p *process) bool { return p.id == "" || !p.runs() || isTool(p) })
	closed := map[*process]bool{}
	for _, p := range live {
		closed[p] = p.noStdin
	}
	vm.mu.Unlock()
	for _, p := range live {
		state := p.pump.StopState()
		state.Terminal, state.Closed = p.stdio.Terminal, closed[p]
		all = append(all, journal.MovedExec{ID: p.id, Guest: p.guest, State: state})
	}
	return all
}

func isTool(p *process) bool { return strings.HasPrefix(p.id, guesttool.ExecPrefix) }

// fixStdio says that from now on nothing that a client does to stdio goes along. The VM of a
// checkpoint goes on here, and what comes in its pause reaches it.
func (c *capture) fixStdio() {
	vm := c.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	c.stdioFixed = !c.req.GetCheckpoint()
}

// stdioFixed reports whether a snapshot, or a destination, has the VM's stdio; vm.mu is held.
func (vm *VM) stdioFixed() bool {
	switch vm.state {
	case Captured, Preparing, Prepared, Releasing:
		return true
	case Capturing:
		return vm.op.capture != nil && vm.op.capture.stdioFixed
	}
	return false
}

// resumeMax is what the end of a live move's stream has room for. An exec takes 200 bytes
// of it, and what was read of its stdin and the process does not take.
const resumeMax = 120 << 10

func errTooMuch(size, execs int) error {
	return fmt.Errorf("%d execs and stdin that no process takes are %d bytes, more than the %d that go along with a "+
		"VM: end some execs, or have them ended (--end-execs): %w",
		execs, size, resumeMax, errdefs.ErrFailedPrecondition)
}

// openExecs makes the execs of a restored VM ready to flow, those that the guest has. They are the task's as soon as it
// runs. A VM that was adopted has no task: no call could end them there, so they end now.
func (s *starting) openExecs(all []*agentv1.Process) {
	vm := s.vm
	known := vm.journal.Load().Resume.Execs
	if vm.origin.adopted {
		known = nil
	}
	others := func(p *agentv1.Process) bool {
		return vm.journal.Load().IsNotice(p.GetId()) || vm.pod.isInit(p.GetId())
	}
	go s.task.endUnknownExecs(slices.DeleteFunc(unknownExecs(all, known), others))
	for i, e := range known {
		if !hasProcess(all, e.Guest) {
			vm.log.Warn("the guest has no such exec", "exec", e.ID, "process", e.Guest)
			continue
		}
		p := s.task.newProcess(e.ID, stdio.URIs{Stdout: s.task.init.stdio.Stdout, Stderr: s.task.init.stdio.Stderr,
			Terminal: e.Terminal}, nil)
		st, named, err := s.streams.ForExec(e.State, filepath.Join(vm.journal.Load().RunDir, fmt.Sprintf("exec%d", i)))
		if err != nil {
			vm.log.Warn("an exec lacks a stream", "exec", e.ID, "error", err)
		}
		p.shown = named
		p.guest, p.started, p.came, p.pump = e.Guest, true, true, stdio.NewPump(e.Guest, st, e.Offsets)
		if p.noStdin = e.Closed; p.noStdin {
			st.CloseStdin()
		}
		s.execs = append(s.execs, p)
	}
}

// addExecs makes what was taken up the task's; vm.mu is held.
func (s *starting) addExecs() {
	vm := s.vm
	for _, p := range s.execs {
		s.task.execs[p.id] = p
		vm.events.Send(&events.TaskExecAdded{ContainerID: s.task.id, ExecID: p.id})
		vm.events.Send(&events.TaskExecStarted{ContainerID: s.task.id, ExecID: p.id, Pid: s.task.pid()})
	}
	s.execs = nil
}

// releaseExecs closes what was taken up and never became the task's.
func (s *starting) releaseExecs() {
	for _, p := range s.execs {
		p.pump.Release()
	}
}

// hasProcess reports whether the guest lists a process of that id.
func hasProcess(all []*agentv1.Process, id string) bool {
	for _, p := range all {
		if p.GetId() == id {
			return true
		}
	}
	return false
}
