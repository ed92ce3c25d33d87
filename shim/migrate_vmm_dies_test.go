package shim

import (
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
)

// The VMM dies in a hold that is given back, by an abort or by another caller: then the task ends, with the status of a
// VM that was killed.
func TestVMMDiesInAHoldThatIsGivenBack(t *testing.T) {
	abort := func(w *world) error {
		_, err := w.machineService().Abort(w.t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		return err
	}
	silence := func(w *world) error { vm, _ := w.service.current(); vm.op.capture.expire(); return nil }
	for name, c := range map[string]struct {
		vote bool
		give func(*world) error
	}{
		"captured, aborted": {give: abort},
		"captured, silence": {give: silence},
		"voted, aborted":    {vote: true, give: abort},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			vm, _ := w.service.current()
			_, err := w.capture()
			w.must("capture", err)
			if c.vote {
				w.must("vote", w.vote())
			}
			w.must("kill VMM", w.machine.Kill(t.Context()))
			vm.watchVMM()
			w.must("give back", c.give(w))
			if status := w.wait(""); status != killed || !vm.inState(Stopped) {
				t.Errorf("the task ended with %d, VM is %s", status, vm.state)
			}
			if j := vm.journal.Load(); j.Phase != journal.Own || j.Operation != "" {
				t.Errorf("journal is %s of operation %q", j.Phase, j.Operation)
			}
			w.must("abort once more", abort(w))
			w.must("delete", w.delete())
			w.nothingLeft()
		})
	}
}

// The VMM of a source may die after the vote: its execs are on their way all the same. Where they have left, they end
// as if it lived, and where the VM comes back they have ended with it.
func TestVMMDiesWhenExecsLeave(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		t.Run(fmt.Sprint("leaves ", leaves), func(t *testing.T) {
			w, _ := accompanied(t, "")
			_, err := w.send()
			w.must("send", err)
			w.must("vote", w.vote())
			w.must("kill VMM", w.machine.Kill(t.Context()))
			vm, _ := w.service.current()
			vm.watchVMM()
			for _, id := range []string{"e", "vm"} {
				if status, told := w.events.exit(id); told {
					t.Errorf("%s ends with %d before the hand-over", id, status)
				}
			}
			want := map[string]uint32{"e": movedStatus, "": 0}
			ref := w.ref()
			if leaves {
				_, err = w.machineService().Release(t.Context(), &machinev1.ReleaseRequest{Ref: ref, Digest: streamDigest})
				w.must("release", err)
			} else {
				want = map[string]uint32{"e": killed, "": killed}
				g := ref.GetGeneration() + 2
				w.records.rec.Generation = g
				_, err = w.machineService().Revert(t.Context(), &machinev1.RevertRequest{Ref: ref, OwnerGeneration: g})
				if !errdefs.IsDataLoss(errgrpc.ToNative(err)) {
					t.Errorf("revert = %v", err)
				}
			}
			for id, status := range want {
				if got := w.wait(id); got != status {
					t.Errorf("%q ended with %d, want %d", id, got, status)
				}
			}
		})
	}
}
