package shim

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
)

// operation is one that takes all of a VM away from its node.
type operation struct {
	begin  func(*world) error
	digest string
}

var operations = map[string]operation{
	"move":      {func(w *world) error { _, err := w.send(); return err }, streamDigest},
	"hibernate": {func(w *world) error { _, err := w.capture(); return errgrpc.ToNative(err) }, "sha256:" + hexDigest},
}

// begun is an operation under way, which has come so far that ready says so.
func (w *world) begun(o operation, ready func(*VM) bool) (*VM, chan error) {
	w.t.Helper()
	vm, err := w.service.current()
	w.must("find", err)
	done := make(chan error, 1)
	go func() { done <- o.begin(w) }()
	if !eventually(func() bool { return ready(vm) }) {
		w.t.Fatalf("it does not begin: VM is %s", vm.state)
	}
	return vm, done
}

func inPasses(vm *VM) bool { return vm.journal.Load().Phase == journal.Sending }

// saved: the operation does without the VMM.
func saved(vm *VM) bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.op.capture != nil && vm.op.capture.saved
}

func (w *world) release(digest string) error {
	_, err := w.machineService().Release(w.t.Context(), &machinev1.ReleaseRequest{Ref: w.ref(), Digest: digest})
	return errgrpc.ToNative(err)
}

func (w *world) abort() error {
	_, err := w.machineService().Abort(w.t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	return errgrpc.ToNative(err)
}

// ends is how often containerd was told of the task's end so far.
func (w *world) ends() (n int) {
	for _, topic := range w.events.all() {
		if topic == "/tasks/exit" {
			n++
		}
	}
	return n
}

// endsOnce wants the task to end with status, and containerd to be told so, once.
func (w *world) endsOnce(what string, status uint32) {
	w.t.Helper()
	if got := w.wait(""); got != status {
		w.t.Errorf("%s: the task ended with %d, want %d", what, got, status)
	}
	if !eventually(func() bool { return w.ends() > 0 }) {
		w.t.Errorf("%s: containerd is never told", what)
	}
	w.must("delete", w.delete())
	if n := w.ends(); n != 1 {
		w.t.Errorf("%s: containerd is told of %d ends", what, n)
	}
	w.nothingLeft()
}

// I3: a VMM that dies when its state is saved and the rest is on its way. The task's end is the operation's to tell: 0
// after the hand-over, or, where that fails, 137 at once.
func TestVMMDiesAfterItsStateIsSaved(t *testing.T) {
	for name, o := range operations {
		for n := 0; ; n++ {
			w := moving(t)
			w.store.block = make(chan struct{})
			vm, done := w.begun(o, saved)
			w.must("kill VMM", w.machine.Kill(t.Context()))
			vm.watchVMM() // as the VM's own has, or will
			if status, told := w.events.exit("vm"); told {
				t.Fatalf("%s: containerd is told of an end with %d while the rest is on its way", name, status)
			}
			if err := errgrpc.ToNative(w.delete()); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s: delete = %v", name, err)
			}
			w.arm(n)
			close(w.store.block)
			lost := <-done
			var failed error
			if lost == nil {
				if failed = w.vote(); failed == nil {
					failed = w.release(o.digest)
				}
			}
			at := w.fired()
			w.arm(0)
			want := uint32(0)
			switch {
			case lost != nil:
				if want = killed; at == "" || !vm.inState(Stopped) {
					t.Errorf("%s: %v; %q failed, VM is %s", name, lost, at, vm.state)
				}
				if j := vm.journal.Load(); j.Phase != journal.Own || j.Operation != "" {
					t.Errorf("%s, %s failed: journal is %s of operation %q", name, at, j.Phase, j.Operation)
				}
			case failed != nil:
				w.must("vote again", w.vote())
				w.must("release again", w.release(o.digest))
			}
			w.endsOnce(fmt.Sprintf("%s, %q failed", name, at), want)
			if n > 0 && at == "" {
				break
			}
		}
	}
}

// .. and one whose operation is called off meanwhile, or whose controller says nothing.
func TestVMMDiesAfterItsStateIsSavedInVain(t *testing.T) {
	for name, o := range operations {
		for how, end := range map[string]func(*world, *VM) error{
			"aborted": func(w *world, _ *VM) error { return w.abort() },
			"silence": func(_ *world, vm *VM) error { vm.op.capture.expire(); return nil },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				w := moving(t)
				w.store.block = make(chan struct{})
				vm, done := w.begun(o, saved)
				w.must("kill VMM", w.machine.Kill(t.Context()))
				vm.watchVMM()
				w.must(how, end(w, vm))
				if err := <-done; err == nil {
					t.Error("it succeeded")
				}
				if j := vm.journal.Load(); j.Phase != journal.Own {
					t.Errorf("journal %s", j.Phase)
				}
				w.endsOnce(how, killed)
			})
		}
	}
}

// A guest that ends before its state is saved ends the operation, which says why; its end is
// told once, with its own status.
func TestGuestEndsBeforeThePause(t *testing.T) {
	exits := func(w *world, vm *VM) {
		w.agent.exit("") <- 7
		if !eventually(func() bool { return vm.owner.init.pump.Reported() != nil }) {
			t.Error("no end of the process")
		}
	}
	for how, c := range map[string]struct {
		do     func(*world, *VM)
		status uint32
		reason string
	}{
		"power-off": {func(w *world, _ *VM) { w.machine.powerOff() }, 0, "the guest ended (exit 0, powered off)"},
		"reset": {func(w *world, _ *VM) {
			w.machine.reset()
		}, killed, "the guest ended (exit 137, VMM: status 137, reset by the guest)"},
		"kill of VMM":    {func(w *world, _ *VM) { _ = w.machine.Kill(t.Context()) }, killed, "VMM killed by a signal"},
		"process exit 7": {exits, 7, "the guest ended (exit 7)"},
	} {
		for name, o := range operations {
			says := func(t *testing.T, w *world, vm *VM, err error) {
				if !errdefs.IsAborted(err) || !strings.Contains(err.Error(), c.reason) ||
					strings.Contains(err.Error(), "context canceled") {
					t.Errorf("%s = %v", name, err)
				}
				if err := w.abort(); err != nil && !errdefs.IsNotFound(err) { // the controller's, after the task's end
					t.Errorf("abort: %v", err)
				}
				if j := vm.journal.Load(); j.Phase != journal.Own || j.Operation != "" {
					t.Errorf("journal is %s of operation %q", j.Phase, j.Operation)
				}
				if err := o.begin(w); err == nil {
					t.Error("it was begun again")
				}
			}
			t.Run(name+" "+how+" during passes", func(t *testing.T) {
				t.Parallel() // each waits for a second end that does not come
				w := moving(t)
				w.store.early = make(chan struct{})
				vm, done := w.begun(o, inPasses)
				c.do(w, vm)
				w.endsOnce(how, c.status) // who is told deletes at once
				says(t, w, vm, <-done)
			})
			// What asks first of all, or last before the pause, and what stops the VM and saves it, find it gone.
			for _, call := range map[string][]string{"move": {"info", "pause", "save state"}, "hibernate": {"probe"}}[name] {
				switch {
				case how == "process exit 7" && (call == "pause" || call == "save state"):
					continue // a guest that stands still ends nothing
				case how == "power-off" && call != "pause":
					continue // it is waited for whether its init says something
				}
				t.Run(name+" "+how+" at "+call, func(t *testing.T) {
					t.Parallel()
					w := moving(t)
					vm, _ := w.service.current()
					paused := false
					w.at(call, func() error {
						c.do(w, vm)
						switch {
						case call == "probe" && !eventually(func() bool { return vm.inState(Stopped) }):
							t.Error("the VM does not end")
						case call == "probe": // its RAM is gone
							return nil
						case how == "process exit 7":
							w.at("pause", func() error { paused = true; return nil })
							return nil
						}
						return fmt.Errorf("%s: connection reset: %w", call, errdefs.ErrUnavailable)
					})
					err := o.begin(w)
					w.at(call, nil)
					if paused {
						t.Error("a guest was paused for a move that has reported its end here")
					}
					says(t, w, vm, err)
					w.endsOnce(how, c.status)
				})
			}
		}
	}
}

// A VMM that is told to end by a signal, where its guest's power-off looks the same: a guest with an
// agent has not ended by itself, unless its init has, and who restarts what fails is to see it.
func TestVMMIsToldToEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		unsure, exits bool
		status        uint32
	}{
		"by the guest":       {status: 0},
		"by somebody":        {unsure: true, status: killed},
		"after the init's 7": {unsure: true, exits: true, status: 7},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			vm := w.service.vm
			w.machine.unsure = tt.unsure
			if tt.exits {
				w.agent.exit("") <- 7
				if !eventually(func() bool { return vm.owner.init.pump.Reported() != nil }) {
					t.Error("no end of the process")
				}
			}
			w.machine.powerOff()
			w.endsOnce(name, tt.status)
		})
	}
	w, output := diskWorld(t)
	w.must("create", w.createDisk(output))
	w.must("start", w.start())
	w.machine.unsure = true
	w.machine.powerOff()
	w.endsOnce("a guest without an agent", 0)
}

// The caller that ordered the operation hears why it ended. It does so also where the task is deleted the moment that
// its end is told, and its shim's socket goes.
func TestGuestEndsAndItsTaskIsDeleted(t *testing.T) {
	w := moving(t)
	w.store.early = make(chan struct{})
	conn, err := net.Dial("unix", w.cfg.MachineSocket("ns", "vm"))
	w.must("dial", err)
	client := ttrpc.NewClient(conn)
	defer client.Close()
	machine := machinev1.NewMachineClient(client)
	_, done := w.begun(operation{begin: func(w *world) error {
		_, err := machine.Capture(t.Context(), &machinev1.CaptureRequest{Ref: w.ref(), Repository: "r", Tag: "t"})
		return errgrpc.ToNative(err)
	}}, inPasses)
	w.must("kill VMM", w.machine.Kill(t.Context()))
	w.endsOnce("deleted", killed)
	if err := <-done; !errdefs.IsAborted(err) || !strings.Contains(err.Error(), "the guest ended") {
		t.Errorf("capture = %v", err)
	}
	if _, err := machine.Query(t.Context(), &machinev1.QueryRequest{}); err == nil {
		t.Error("the socket is served on")
	}
}

// In the pause nothing of a guest ends, but its VMM may: the move goes on, and the final owner
// tells how the guest ended.
func TestGuestEndsInThePause(t *testing.T) {
	for how, do := range map[string]func(*world){
		"power-off":      func(w *world) { w.machine.powerOff() }, // the VMM's own, in order: a signal
		"reset":          func(w *world) { w.machine.reset() },
		"kill of VMM":    func(w *world) { _ = w.machine.Kill(t.Context()) },
		"process exit 7": func(w *world) { w.agent.exit("") <- 7 }, // heard by who asks next
	} {
		t.Run(how, func(t *testing.T) {
			w := moving(t)
			w.store.block = make(chan struct{})
			vm, done := w.begun(operations["move"], saved)
			do(w)
			close(w.store.block)
			w.must("send", <-done)
			w.must("vote", w.vote())
			if n := w.ends(); n != 0 {
				t.Errorf("an end was told %d times before the hand-over", n)
			}
			w.must("release", w.release(streamDigest))
			if j := vm.journal.Load(); j.Phase != journal.Released {
				t.Errorf("journal %s", j.Phase)
			}
			w.endsOnce(how, 0)
		})
	}
	t.Run("heard at the destination", func(t *testing.T) {
		w := coming(t)
		w.must("create", w.receive())
		w.connect()
		if !w.arrived() {
			t.Fatalf("phase %s", w.phase())
		}
		w.agent.exit("") <- 7
		w.commit()
		w.must("start", w.start())
		w.endsOnce("at the destination", 7)
	})
}
