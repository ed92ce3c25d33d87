package shim

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A source that has its VM back and cannot run it says so, also when it is asked again.
func TestRevertOfTheDead(t *testing.T) {
	w := moving(t)
	_, err := w.send()
	w.must("send", err)
	w.must("vote", w.vote())
	ref, vm := w.ref(), func() *VM { vm, _ := w.service.the(); return vm }()
	w.machine.powerOff()
	if !eventually(func() bool { return vm.is(Stopped) }) {
		t.Fatalf("VM is %s", vm.state)
	}
	w.records.rec.Owner, w.records.rec.Generation = &nodev1.Owner{Node: "a"}, ref.GetGeneration()+2
	for range 2 {
		_, err := w.machineService().Revert(t.Context(), &machinev1.RevertRequest{Ref: ref, OwnerGeneration: ref.GetGeneration() + 2})
		if err := errgrpc.ToNative(err); !errdefs.IsDataLoss(err) {
			t.Errorf("revert: %v", err)
		}
	}
}

// A destination that ends with a disk on which it cannot write its fence writes it when it
// is asked to run and there is space again.
func TestFenceIsOwed(t *testing.T) {
	w := coming(t)
	w.must("create", w.receive())
	w.connect()
	if !w.arrived() {
		t.Fatalf("phase %s", w.phase())
	}
	vm, _ := w.service.the()
	free := w.full()
	w.machine.powerOff()
	if !eventually(func() bool { return vm.is(Stopped) }) || w.phase() != Ready {
		t.Fatalf("VM is %s, journal %s", vm.state, w.phase())
	}
	free()
	if err := errgrpc.ToNative(w.start()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("start: %v", err)
	}
	if w.phase() != Fenced {
		t.Errorf("journal %s", w.phase())
	}
}
