package shim

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
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
	old, _ := w.service.the()
	if _, err := adopted(old.life, w.host(), "ns", "vm"); !errdefs.IsAlreadyExists(err) {
		t.Fatalf("adopt beside a living shim = %v", err)
	}
	w.must("forget shim", old.write(func(j *Journal) { j.Shim = proc.ID{} }))
	w.must("unserve", old.unserve())
	vm, err := adopted(old.life, w.host(), "ns", "vm")
	w.must("adopt", err)
	return vm, &machineService{find: func() (*VM, error) { return vm, nil }}, r
}

// A voted VM whose shim died is released by its successor.
func TestAdoptedIsReleased(t *testing.T) {
	w := newWorld(t)
	vm, m, r := orphan(t, w, true)
	_, err := m.Release(t.Context(), &machinev1.ReleaseRequest{Ref: w.ref(), Digest: r.GetDigest()})
	w.must("release", err)
	if vm.noted().Phase != Released {
		t.Errorf("journal is %s", vm.noted().Phase)
	}
	w.must("reclaim", reclaim(t.Context(), vm.host, vm.dir, vm.noted()))
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
			if r.GetState() != string(Running) || !w.machine.running() || vm.noted().Phase != Own {
				t.Fatalf("VM is %s, journal %s", r.GetState(), vm.noted().Phase)
			}
			w.agent.exit("") <- 0
			<-vm.init.done
			if !eventually(func() bool { return vm.is(Stopped) }) {
				t.Error("the end of init does not end the VM")
			}
		})
	}
}

// A VM that stands still before its vote is not left so by a controller that says nothing, though
// its shim has died: its successor waits no longer than that one. One that has voted waits.
func TestAdoptedIsNotLeftToStandStill(t *testing.T) {
	w := newWorld(t)
	vm, m, _ := orphan(t, w, false)
	if !vm.capture.deadline.Reset(0) {
		t.Error("no deadline is set")
	}
	if !eventually(func() bool { return vm.is(Running) && w.machine.running() }) || vm.noted().Phase != Own {
		t.Fatalf("the deadline has passed: VM is %s, journal %s", vm.state, vm.noted().Phase)
	}
	if _, err := m.Vote(t.Context(), &machinev1.VoteRequest{Ref: w.ref()}); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("a vote that comes late: %v", err)
	}
	w = newWorld(t)
	if vm, _, _ = orphan(t, w, true); vm.capture.deadline.Reset(0) {
		t.Error("a VM that has voted has a deadline")
	}
	vm.silent(vm.capture) // one that was about to pass
	if !vm.is(Voted) || vm.noted().Phase != Prepared {
		t.Errorf("it voted: VM is %s, journal %s", vm.state, vm.noted().Phase)
	}
}
