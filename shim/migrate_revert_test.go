package shim

import (
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/journal"
)

// A source that has its VM back and cannot run it says so, also when it is asked again.
func TestRevertOfTheDead(t *testing.T) {
	w := moving(t)
	_, err := w.send()
	w.must("send", err)
	w.must("vote", w.vote())
	ref, vm := w.ref(), func() *VM { vm, _ := w.service.current(); return vm }()
	w.machine.powerOff()
	vm.watchVMM()
	w.records.rec.Owner, w.records.rec.Generation = &nodev1.Owner{Node: "a"}, ref.GetGeneration()+2
	for range 2 {
		_, err := w.machineService().Revert(t.Context(),
			&machinev1.RevertRequest{Ref: ref, OwnerGeneration: ref.GetGeneration() + 2})
		if err := errgrpc.ToNative(err); !errdefs.IsDataLoss(err) {
			t.Errorf("revert: %v", err)
		}
	}
}

// A destination that ends with a full disk cannot write its fence, and does not run. It writes the fence when there is
// space again, whether it is asked to run or not.
func TestFenceIsOwed(t *testing.T) {
	w := coming(t)
	w.must("create", w.receive())
	w.connect()
	if !w.arrived() {
		t.Fatalf("phase %s", w.phase())
	}
	vm, _ := w.service.current()
	free := w.full()
	w.machine.powerOff()
	if !eventually(func() bool { return vm.inState(Stopped) }) || w.phase() != journal.Ready {
		t.Fatalf("VM is %s, journal %s", vm.state, w.phase())
	}
	if err := errgrpc.ToNative(w.start()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("start: %v", err)
	}
	free()
	if !eventually(func() bool { return w.phase() == journal.Fenced }) {
		t.Errorf("journal %s", w.phase())
	}
}

// A destination whose source has let it go ends by itself: a kill that meets it there succeeds as on a dying process,
// so that the caller who undoes it has only to wait.
func TestKillOfWhatEnds(t *testing.T) {
	w := coming(t)
	w.must("create", w.receive())
	vm, _ := w.service.current()
	w.must("end", vm.enterFrom(Created, Ending))
	for _, signal := range []uint32{15, 9} {
		if _, err := w.service.Kill(t.Context(), &taskapi.KillRequest{ID: vm.id, Signal: signal}); err != nil {
			t.Errorf("signal %d: %v", signal, err)
		}
	}
	vm.ending.end(t.Context(), killed, time.Now())
	if !eventually(func() bool { return vm.inState(Stopped) }) {
		t.Fatalf("VM is %s", vm.state)
	}
	if _, err := w.service.Kill(t.Context(), &taskapi.KillRequest{ID: vm.id, Signal: 9}); !errdefs.IsNotFound(
		errgrpc.ToNative(err)) {
		t.Errorf("a kill after the end: %v", err)
	}
}
