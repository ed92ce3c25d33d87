package shim

import (
	"io"
	"log/slog"
	"testing"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// TestPinIsNoted: a VM that leaves says that it is not pinned elsewhere. A checkpoint says nothing: the VM stays.
func TestPinIsNoted(t *testing.T) {
	for checkpoint, want := range map[bool]int{false: 1, true: 0} {
		w := newWorld(t).running()
		vm, err := w.service.current()
		w.must("find VM", err)
		said := 0
		vm.owner.bundle.CPUs = "0-1"
		vm.log = slog.New(hears{slog.NewTextHandler(io.Discard, nil), "the VM is pinned to parts of this node: another " +
			"node that runs it uses all of its own", func() { said++ }})
		_, err = w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: w.ref(), Repository: "r",
			Checkpoint: checkpoint})
		w.must("capture", err)
		if said != want {
			t.Errorf("checkpoint %v: it was said %d times, not %d", checkpoint, said, want)
		}
	}
}
