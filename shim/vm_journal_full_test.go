package shim

import (
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/shim/journal"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// A full disk under the journal refuses a hibernate by class and leaves the VM as it
// was; with space it goes on.
func TestCaptureOnAFullDisk(t *testing.T) {
	real, full := durable.SyncDir, &atomic.Bool{}
	t.Cleanup(func() { durable.SyncDir = real }) // after the end of the world, which has writers of its own
	durable.SyncDir = func(dir string) error {
		if full.Load() {
			return &os.PathError{Op: "sync", Path: dir, Err: syscall.ENOSPC}
		}
		return real(dir)
	}
	w := newWorld(t).running()
	full.Store(true)
	_, err := w.capture()
	if !errdefs.IsResourceExhausted(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), "state_dir") {
		t.Errorf("capture: %v", err)
	}
	vm, err := w.service.current()
	if err != nil || !vm.inState(Running) || vm.journal.Load().Phase != journal.Own {
		t.Errorf("the VM is %v in %s, %v", vm.state, vm.journal.Load().Phase, err)
	}
	if _, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"}); err != nil {
		t.Errorf("pause needs no disk: %v", err)
	}
	if _, err := w.service.Resume(ctxNS(t), &taskapi.ResumeRequest{ID: "vm"}); err != nil {
		t.Errorf("resume needs no disk: %v", err)
	}
	full.Store(false)
	if _, err := w.capture(); err != nil {
		t.Errorf("capture with space: %v", err)
	}
}

// A second operation that a full disk refuses too is not the end of the word that the first one is over: the journal
// says OWN when there is room.
func TestAbortedTwiceOnAFullDisk(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	_, err := w.capture()
	w.must("capture", err)
	free := w.full()
	_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	w.aborted++
	if _, err := w.capture(); err == nil {
		t.Fatal("captured on a full disk")
	}
	if said := w.unwritten(); !strings.Contains(said, journal.File("")) {
		t.Errorf("the shim says of its journal: %q", said)
	}
	free()
	if !eventually(func() bool { j, err := journal.Read(vm.dir); return err == nil && j.Phase == journal.Own }) {
		t.Error("the journal never says OWN")
	}
	if !eventually(func() bool { return w.unwritten() == "" }) {
		t.Error("the shim says of a journal that is written that it is not")
	}
}

// unwritten is what the shim says of a journal that the disk has not taken.
func (w *world) unwritten() string {
	r, err := w.machineService().Query(w.t.Context(), &machinev1.QueryRequest{})
	w.must("query", err)
	return r.GetUnwritten()
}
