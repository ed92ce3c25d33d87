package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
)

// An exec that runs goes along with a VM that moves: its process is in the guest. What the
// shim there has to know of it is in Resume. No client is attached to it there: its output
// goes where the task's goes, its stdin stays open until somebody closes it. A client may
// attach to it there, by fifos of its own.

// elsewhere is the status of an exec at the node that it has left: how it ends is not known
// there. containerd's clients call that one unknown.
const elsewhere = 255

// Along is an exec that runs, as the next shim finds it again.
type Along struct {
	ID       string         `json:"id"`    // containerd's
	Guest    string         `json:"guest"` // its id there
	Terminal bool           `json:"terminal,omitempty"`
	Stdin    bool           `json:"stdin,omitempty"` // which streams the guest carries
	Stdout   bool           `json:"stdout,omitempty"`
	Stderr   bool           `json:"stderr,omitempty"`
	Closed   bool           `json:"closed,omitempty"` // stdin ends behind what was read of it
	Offsets  client.Offsets `json:"offsets"`
}

// along are the execs that run, of a VM whose traffic stands still. One whose end the
// guest has told, and containerd not yet, is among them.
func (vm *VM) along() (all []Along) {
	vm.mu.Lock()
	live := slices.DeleteFunc(vm.processes(), func(p *process) bool { return p.id == "" || !p.runs() })
	closed := map[*process]bool{}
	for _, p := range live {
		closed[p] = p.noStdin
	}
	vm.mu.Unlock()
	for _, p := range live {
		st := p.pumps.streams
		all = append(all, Along{
			ID: p.id, Guest: p.guest, Terminal: p.stdio.Terminal,
			Stdin: st.stdin != nil, Stdout: st.stdout != nil, Stderr: st.stderr != nil, Closed: closed[p], Offsets: p.pumps.stop(),
		})
	}
	return all
}

// fixStdio says that from now on nothing that a client does to stdio goes along. The VM of a
// checkpoint goes on here, and what comes in its pause reaches it.
func (c *capture) fixStdio() {
	vm := c.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	c.fixed = !c.req.GetCheckpoint()
}

// stdioFixed reports whether a snapshot, or a destination, has the VM's stdio; vm.mu is held.
func (vm *VM) stdioFixed() bool {
	switch vm.state {
	case Captured, Voting, Voted, Releasing:
		return true
	case Capturing:
		return vm.op.capture != nil && vm.op.capture.fixed
	}
	return false
}

// resumeMax is what the end of a live move's stream has room for. An exec takes 200 bytes
// of it, and what was read of its stdin and the process does not take.
const resumeMax = 120 << 10

func errTooMuch(size, execs int) error {
	return fmt.Errorf("%d execs and stdin that no process takes are %d bytes, more than the %d that go along with a VM: end some execs, or have them ended (--end-execs): %w",
		execs, size, resumeMax, errdefs.ErrFailedPrecondition)
}

// check refuses what no shim has written: such ids would stand for the task's init, or
// for each other.
func (r *Resume) check() error {
	seen := map[string]bool{}
	for _, e := range r.Execs {
		for _, id := range []string{"exec " + e.ID, "process " + e.Guest} {
			if e.ID == "" || e.Guest == "" || seen[id] {
				return fmt.Errorf("its resume information has execs %q: %w", []string{e.ID, e.Guest}, errdefs.ErrDataLoss)
			}
			seen[id] = true
		}
	}
	return nil
}

// gather makes the execs of a restored VM ready to flow, those that the guest has. They
// are the task's as soon as it runs. A VM that was adopted has no task: nobody could end
// them there, so that they end now.
func (s *starting) gather(all []*agentv1.Process) {
	vm := s.vm
	known := vm.noted().Resume.Execs
	if vm.adopted {
		known = nil
	}
	go s.task.endStrays(slices.DeleteFunc(strays(all, known), vm.noted().tells))
	for i, e := range known {
		if !has(all, e.Guest) {
			vm.log.Warn("the guest has no such exec", "exec", e.ID, "process", e.Guest)
			continue
		}
		p := s.task.newProcess(e.ID, Stdio{Stdout: s.task.init.stdio.Stdout, Stderr: s.task.init.stdio.Stderr, Terminal: e.Terminal}, nil)
		st, named, err := s.streams.beside(e, filepath.Join(vm.noted().RunDir, fmt.Sprintf("exec%d", i)))
		if err != nil {
			vm.log.Warn("an exec lacks a stream", "exec", e.ID, "error", err)
		}
		p.shown = named
		p.guest, p.started, p.came, p.pumps = e.Guest, true, true, newPumps(e.Guest, st, e.Offsets)
		if p.noStdin = e.Closed; p.noStdin {
			st.closeStdin()
		}
		s.execs = append(s.execs, p)
	}
}

// bring makes what was taken up the task's; vm.mu is held.
func (s *starting) bring() {
	vm := s.vm
	for _, p := range s.execs {
		s.task.execs[p.id] = p
		vm.events.Send(&events.TaskExecAdded{ContainerID: s.task.id, ExecID: p.id})
		vm.events.Send(&events.TaskExecStarted{ContainerID: s.task.id, ExecID: p.id, Pid: s.task.pid()})
	}
	s.execs = nil
}

// letGo closes what was taken up and never became the task's.
func (s *starting) letGo() {
	for _, p := range s.execs {
		p.pumps.die()
		p.pumps.streams.close()
	}
}

// has reports whether the guest lists a process of that id.
func has(all []*agentv1.Process, id string) bool {
	for _, p := range all {
		if p.GetId() == id {
			return true
		}
	}
	return false
}

// beside are the streams of an exec that goes on beside the task: it writes where the task
// does, or nowhere, for a guest whose output nobody takes stands still. Clients attach by fifos
// whose names begin with prefix. What fails leaves it without that stream.
func (st *streams) beside(e Along, prefix string) (*streams, Stdio, error) {
	all := streams{log: st.log}
	var errs []error
	sink := func(want bool, to ...*os.File) *os.File {
		if !want {
			return nil
		}
		f, err := duplicate(to...)
		errs = append(errs, err)
		return f
	}
	all.stdout = sink(e.Stdout, st.stdout)
	all.stderr = sink(e.Stderr, st.stderr, st.stdout) // a terminal has one of them
	named, err := all.offerTo(prefix)
	errs = append(errs, err)
	named.Terminal = e.Terminal
	switch {
	case !e.Stdin || e.Offsets.StdinDone:
	case e.Closed:
		all.stdin, all.hold, err = os.Pipe()
		errs = append(errs, err)
	default:
		if err = all.takeFrom(prefix + "-stdin"); err == nil {
			named.Stdin = prefix + "-stdin"
		}
		errs = append(errs, err)
	}
	return &all, named, errors.Join(errs...)
}

// takeFrom has stdin come through a fifo that it makes.
func (st *streams) takeFrom(path string) (err error) {
	if err := fifo(path); err != nil {
		return err
	}
	return st.openInput(path)
}

// duplicate is another descriptor of the first file that is there, or one that discards.
func duplicate(all ...*os.File) (*os.File, error) {
	for _, f := range all {
		if f == nil {
			continue
		}
		raw, err := f.SyscallConn()
		if err != nil {
			return nowhereFile(err)
		}
		fd, dup := -1, error(nil)
		if err := raw.Control(func(old uintptr) { fd, dup = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err != nil || dup != nil {
			return nowhereFile(errors.Join(err, dup))
		}
		return os.NewFile(uintptr(fd), f.Name()), nil
	}
	return nowhereFile(nil)
}

// nowhereFile discards, because of cause if there is one.
func nowhereFile(cause error) (*os.File, error) {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	return f, errors.Join(cause, err)
}
