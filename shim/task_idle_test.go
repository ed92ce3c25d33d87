package shim

import (
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// A shim that no client asks for a task ends: its containerd was killed before it knew of the shim. One whose Create
// has failed waits anew, and one with a task stays.
func TestShimWithoutATaskEnds(t *testing.T) {
	idleBound = 100 * time.Millisecond
	t.Cleanup(func() { idleBound = 3 * time.Minute })
	over := func(w *world, within time.Duration) bool {
		select {
		case <-w.service.shutdown.Done():
			return true
		case <-time.After(within):
			return false
		}
	}
	w := newWorld(t)
	if !over(w, time.Minute) {
		t.Error("a shim without a task stays")
	}
	if err := errgrpc.ToNative(w.create()); !errdefs.IsUnavailable(err) {
		t.Errorf("a Create in a shim that ends: %v", err)
	}
	w = newWorld(t)
	w.must("create", w.create())
	if over(w, 10*idleBound) {
		t.Error("a shim with a task has ended")
	}
	w = newWorld(t)
	w.arm(1)
	if err := w.create(); err == nil {
		t.Fatal("the first call of a Create has failed, and it succeeded")
	}
	w.arm(0)
	if !over(w, time.Minute) {
		t.Error("a shim stays whose Create has failed")
	}
}
