package shim

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// withoutRecord is a VM that was started while its node asked no records, and has got its record since.
func (w *world) withoutRecord() {
	w.unasked = true
	w.running()
	vm, _ := w.service.current()
	w.records.set(func(rec *nodev1.Record) {
		rec.Owner, rec.Generation, rec.Uid = &nodev1.Owner{Node: "a"}, 1, vm.journal.Load().Spec.UID
	})
}

func (w *world) generation() uint64 {
	vm, err := w.service.current()
	w.must("find", err)
	return vm.journal.Load().Generation
}

// A Create that asks no record makes no claim. Whatever call of the VM's first checkpoint fails, it runs on, and the
// next checkpoint succeeds. From then on it runs under the record's generation.
func TestFirstCheckpointFailsAtEachCall(t *testing.T) {
	take := func(w *world) error { _, err := w.checkpoint(false); return err }
	failEach(t, (*world).withoutRecord, take, func(t *testing.T, w *world, name string) {
		if vm, err := w.service.current(); name == "resume" && err == nil && vm.inState(Stopped) {
			return // it cannot be resumed, and ends
		}
		w.wantFree(name + " failed")
		ref := w.ref()
		ref.Attempt = 2
		_, err := w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: ref, Repository: "r",
			Checkpoint: true})
		w.must("checkpoint again", err)
		if g := w.generation(); g != 1 {
			t.Errorf("it runs under %d", g)
		}
	})
}

// A VM that got its record late is one like the others: an operation of another claim is refused, it ends where its
// record has given it to another node, and its end gives the record back.
func TestRecordThatCameLate(t *testing.T) {
	w := newWorld(t)
	w.unasked = true
	for _, call := range []string{"ensure", "own", "disown"} {
		w.at(call, func() error { t.Errorf("without a record: %s", call); return nil })
	}
	w.running()
	if g := w.generation(); g != 0 {
		t.Errorf("without a record it runs under %d", g)
	}
	w.must("kill", w.kill("", 9))
	if !eventually(func() bool { return w.delete() == nil }) {
		t.Error("it is not deleted")
	}

	w = newWorld(t)
	w.withoutRecord()
	_, err := w.checkpoint(false)
	w.must("checkpoint", err)
	other := w.ref()
	other.Operation, other.Generation = "op2", 7
	_, err = w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: other, Repository: "r"})
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("an operation of another claim: %v", err)
	}
	w.records.set(func(rec *nodev1.Record) { rec.Owner, rec.Generation = &nodev1.Owner{Node: "b"}, 3 })
	_, err = w.machineService().End(t.Context(), &machinev1.EndRequest{Generation: 3, Reason: "lost"})
	w.must("end what is another node's", err)
	if !eventually(func() bool { vm, err := w.service.current(); return err != nil || vm.inState(Stopped) }) {
		t.Error("two nodes run the VM")
	}
}
