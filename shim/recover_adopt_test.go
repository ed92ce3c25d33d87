package shim

import (
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

// orphan is a VM whose shim died while an operation held it, and its successor.
func orphan(t *testing.T, w *world, vote bool) (*VM, *machineService, *machinev1.CaptureResponse) {
	t.Helper()
	w.running()
	r, err := w.capture()
	w.must("capture", err)
	if vote {
		_, err := w.machineService().Vote(t.Context(), &machinev1.VoteRequest{Ref: w.ref()})
		w.must("vote", err)
	}
	vm := succeed(t, w)
	return vm, &machineService{find: func() (*VM, error) { return vm, nil }}, r
}

// succeed has the VM's shim die, and answers its successor's VM.
func succeed(t *testing.T, w *world) *VM {
	t.Helper()
	old, _ := w.service.current()
	if _, err := adoptVM(old.life, w.host(), "ns", "vm"); !errdefs.IsAlreadyExists(err) {
		t.Fatalf("adopt beside a living shim = %v", err)
	}
	w.must("forget shim", old.write(func(j *journal.Journal) { j.Shim = proc.ID{} }))
	w.must("unserve", old.socket.close(old.life))
	vm, err := adoptVM(old.life, w.host(), "ns", "vm")
	w.must("adopt", err)
	return vm
}

// A voted VM whose shim died is released by its successor.
func TestAdoptedIsReleased(t *testing.T) {
	w := newWorld(t)
	vm, m, r := orphan(t, w, true)
	_, err := m.Release(t.Context(), &machinev1.ReleaseRequest{Ref: w.ref(), Digest: r.GetDigest()})
	w.must("release", err)
	if vm.journal.Load().Phase != journal.Released {
		t.Errorf("journal is %s", vm.journal.Load().Phase)
	}
	w.must("reclaim", reclaim(t.Context(), vm.host, vm.dir, vm.journal.Load()))
	w.nothingLeft()
}

// An adopted VM runs on after an abort, voted or not, and its init's exit ends it.
func TestAdoptedIsGivenBack(t *testing.T) {
	for name, vote := range map[string]bool{"captured": false, "voted": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			vm, m, _ := orphan(t, w, vote)
			r, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
			w.must("abort", err)
			if r.GetState() != string(Running) || !w.machine.running() || vm.journal.Load().Phase != journal.Own {
				t.Fatalf("VM is %s, journal %s", r.GetState(), vm.journal.Load().Phase)
			}
			w.agent.exit("") <- 0
			<-vm.owner.init.done
			if !eventually(func() bool { return vm.inState(Stopped) }) {
				t.Error("the end of init does not end the VM")
			}
		})
	}
}

// A successor waits for the controller as long as the one before would have: as long as the order
// says, and for a live move as an abort may take.
func TestAdoptedIsAsPatient(t *testing.T) {
	w := newWorld(t)
	w.running()
	_, err := w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: w.ref(), Repository: "r", Tag: "t",
		TimeoutMs: 7500})
	w.must("capture", err)
	if vm := succeed(t, w); vm.op.capture.silenceBound() != 7500*time.Millisecond {
		t.Errorf("patience of %v with an order's timeout of 7.5 s", vm.op.capture.silenceBound())
	}
	w = moving(t)
	_, err = w.send()
	w.must("send", err)
	if vm := succeed(t, w); vm.op.capture.silenceBound() != time.Duration(vm.host.Config.Timeouts.Abort) {
		t.Errorf("patience of %v in a live move", vm.op.capture.silenceBound())
	}
	w = newWorld(t)
	before := time.Duration(w.host().Config.Timeouts.Operation)
	w.running()
	_, err = w.capture()
	w.must("capture", err)
	w.cfg.Timeouts.Operation *= 2 // of those that begin from now on
	vm := succeed(t, w)
	if vm.op.capture.silenceBound() != before {
		t.Errorf("patience of %v without a timeout, %v before", vm.op.capture.silenceBound(), before)
	}
	m := &machineService{find: func() (*VM, error) { return vm, nil }}
	_, err = m.Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	if w.must("abort", err); vm.journal.Load().Patience != 0 {
		t.Errorf("%d ms are left in the journal", vm.journal.Load().Patience)
	}
}

// A VM that stands still before its vote is not left so by a controller that says nothing, though
// its shim has died: its successor waits no longer than that one. One that has voted waits.
func TestAdoptedIsNotLeftToStandStill(t *testing.T) {
	w := newWorld(t)
	vm, m, _ := orphan(t, w, false)
	if !vm.op.capture.deadline.Reset(0) {
		t.Error("no deadline is set")
	}
	if !eventually(func() bool {
		return vm.inState(Running) && w.machine.running()
	}) || vm.journal.Load().Phase != journal.Own {
		t.Fatalf("the deadline has passed: VM is %s, journal %s", vm.state, vm.journal.Load().Phase)
	}
	if _, err := m.Vote(t.Context(), &machinev1.VoteRequest{Ref: w.ref()}); !errdefs.IsFailedPrecondition(
		errgrpc.ToNative(err)) {
		t.Errorf("a vote that comes late: %v", err)
	}
	w = newWorld(t)
	if vm, _, _ = orphan(t, w, true); vm.op.capture.deadline.Reset(0) {
		t.Error("a VM that has voted has a deadline")
	}
	vm.op.capture.expire() // one that was about to pass
	if !vm.inState(Prepared) || vm.journal.Load().Phase != journal.Prepared {
		t.Errorf("it voted: VM is %s, journal %s", vm.state, vm.journal.Load().Phase)
	}
}
