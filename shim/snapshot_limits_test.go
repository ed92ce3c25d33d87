package shim

import (
	"testing"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// The limits of one hibernate count for its push, and those of the node where it names none.
func TestCaptureLimits(t *testing.T) {
	for _, tt := range []struct {
		concurrency   uint32
		bandwidth     uint64
		wantJobs      int
		wantBandwidth int64
	}{{0, 0, 4, 1 << 20}, {9, 5 << 20, 9, 5 << 20}} {
		w := newWorld(t)
		w.cfg.Worker.Concurrency, w.cfg.Worker.Bandwidth = 4, 1<<20
		w.running()
		_, err := w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{
			Ref: w.ref(), Repository: "r", Tag: "t", Concurrency: tt.concurrency, Bandwidth: tt.bandwidth,
		})
		if err != nil {
			t.Fatal(err)
		}
		if j := w.store.pushed; j.Concurrency != tt.wantJobs || j.Store.Bandwidth != tt.wantBandwidth {
			t.Errorf("%d at once, %d bytes a second; want %+v", j.Concurrency, j.Store.Bandwidth, tt)
		}
	}
}
