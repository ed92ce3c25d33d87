package shim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
)

func (w *world) checkpoint(paused bool) (*machinev1.CaptureResponse, error) {
	return w.machineService().Capture(w.t.Context(), &machinev1.CaptureRequest{
		Ref: w.ref(), Repository: "r", Tag: "t", Checkpoint: true, Paused: paused,
	})
}

// wantFree wants a VM that no operation holds.
func (w *world) wantFree(what string) {
	w.t.Helper()
	vm, err := w.service.current()
	w.must("find", err)
	if !vm.inState(Running) || !w.machine.running() || vm.journal.Load().Phase != journal.Own || vm.op.capture != nil {
		w.t.Fatalf("%s: VM is %s, journal %s, VMM runs %v", what, vm.state, vm.journal.Load().Phase, w.machine.running())
	}
}

// The VM goes on as soon as it has been read. The snapshot is sent after that, for which nothing of the VM waits. The
// page table of the next one stands with it.
func TestCheckpoint(t *testing.T) {
	w := newWorld(t).running()
	w.store.late = make(chan struct{})
	vm, _ := w.service.current()
	done := make(chan error, 1)
	var r *machinev1.CaptureResponse
	go func() { var err error; r, err = w.checkpoint(false); done <- err }()
	if !eventually(func() bool { vm.mu.Lock(); defer vm.mu.Unlock(); return vm.op.upload != nil && vm.state == Running }) {
		t.Fatal("the VM does not go on while its checkpoint is sent")
	}
	w.wantFree("while the checkpoint is sent")
	ctx := ctxNS(t)
	if _, err := w.service.Pause(ctx, &taskapi.PauseRequest{ID: "vm"}); err != nil {
		t.Errorf("pause while a checkpoint is sent: %v", err)
	}
	if _, err := w.service.Resume(ctx, &taskapi.ResumeRequest{ID: "vm"}); err != nil {
		t.Errorf("resume while a checkpoint is sent: %v", err)
	}
	other := w.ref()
	other.Operation = "op2"
	_, err := w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: other, Repository: "r"})
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("another capture while a checkpoint is sent: %v", err)
	}
	w.must("make page table", os.WriteFile(nextFile(vm.journal.Load()), []byte("new"), 0o600))
	close(w.store.late)
	w.must("checkpoint", <-done)
	if !r.GetGoneOn() || r.GetDigest() == "" || r.GetPauseMs() <= 0 {
		t.Errorf("answer %v", r)
	}
	if data, err := os.ReadFile(tableFile(vm.journal.Load())); err != nil || string(data) != "new" {
		t.Errorf("page table %q: %v", data, err)
	}
	if _, err := os.Stat(finishedFile(vm.journal.Load())); !os.IsNotExist(err) || w.store.pushed.Finished == nil {
		t.Errorf("what is in the table is told of a second time: %v", err)
	}
	again, err := w.checkpoint(false) // the answer may have been lost
	if err != nil || again.GetDigest() != r.GetDigest() {
		t.Errorf("the same order once more: %v, %v", again, err)
	}
	w.wantFree("in the end")
	other.Operation = "op3"
	_, err = w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: other, Repository: "r"})
	w.must("hibernate after it", err)
}

// A VM that was admitted to ram_dir may touch all of it: a page of a table there would be missing to some VM. A
// successor removes what a build before has left there.
func TestTablesTakeNoRAM(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	j := vm.journal.Load()
	for _, path := range []string{tableFile(j), nextFile(j), finishedFile(j)} {
		if strings.HasPrefix(path, w.cfg.RAMDir) || !strings.HasPrefix(path, w.cfg.RunDir) {
			t.Errorf("%s lies in %s", path, w.cfg.RAMDir)
		}
		w.must("make a table", os.WriteFile(path, nil, 0o600))
	}
	w.must("make a table of a build before", os.WriteFile(j.RAM+".table.next", nil, 0o600))
	w.must("remove tables", removeTables(j))
	for _, pattern := range []string{j.RAM + ".*", tableFile(j) + "*"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("%v are left", left)
		}
	}
}

// A checkpoint that fails anywhere leaves the VM running, with its page table as it
// was, and the next one succeeds.
func TestCheckpointFailsAtEachCall(t *testing.T) {
	take := func(w *world) error { _, err := w.checkpoint(false); return err }
	failEach(t, func(w *world) { w.running() }, take, func(t *testing.T, w *world, name string) {
		if vm, err := w.service.current(); name == "resume" && err == nil && vm.inState(Stopped) {
			return // a VM that cannot be resumed is in an unknown state and ends; its checkpoint may stand
		}
		w.wantFree(name + " failed")
		vm, _ := w.service.current()
		if _, err := os.Stat(nextFile(vm.journal.Load())); err == nil {
			t.Error("a page table is left over")
		}
		if name == "push pages" || name == "push" || name == "upload" { // What it finished the next one knows
			if info, err := os.Stat(finishedFile(vm.journal.Load())); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("what was finished: %v, %v", info, err)
			}
		}
		ref := w.ref()
		ref.Attempt = 2
		_, err := w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: ref, Repository: "r",
			Checkpoint: true})
		w.must("checkpoint again", err)
		w.wantFree("again")
	})
}

// An abort after the pause ends the upload and nothing else.
func TestCheckpointIsCancelled(t *testing.T) {
	for name, at := range map[string]func(*world) *chan struct{}{
		"before the pause": func(w *world) *chan struct{} { return &w.store.early },
		"in the pause":     func(w *world) *chan struct{} { return &w.store.block },
		"after it":         func(w *world) *chan struct{} { return &w.store.late },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			*at(w) = make(chan struct{})
			done := make(chan error, 1)
			go func() { _, err := w.checkpoint(false); done <- err }()
			vm, _ := w.service.current()
			if !eventually(func() bool {
				vm.mu.Lock()
				defer vm.mu.Unlock()
				return vm.op.capture != nil && vm.journal.Load().Phase == journal.Sending || vm.op.upload != nil
			}) {
				t.Fatal("it does not begin")
			}
			_, err := w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
			w.must("abort", err)
			if err := <-done; err == nil {
				t.Error("a checkpoint that was aborted succeeded")
			}
			w.wantFree("aborted")
		})
	}
}

// A VMM that dies while its checkpoint is sent takes nothing of it along, and the task can
// be deleted.
func TestCheckpointAfterTheEndOfItsVM(t *testing.T) {
	w := newWorld(t).running()
	w.store.late = make(chan struct{})
	done := make(chan error, 1)
	go func() { _, err := w.checkpoint(false); done <- err }()
	vm, _ := w.service.current()
	if !eventually(func() bool { vm.mu.Lock(); defer vm.mu.Unlock(); return vm.op.upload != nil && vm.state == Running }) {
		t.Fatal("the VM does not go on")
	}
	w.must("kill", w.machine.Kill(t.Context()))
	if !eventually(func() bool { return vm.inState(Stopped) }) {
		t.Fatalf("VM is %s", vm.state)
	}
	close(w.store.late)
	w.must("checkpoint", <-done)
	w.must("delete", w.delete())
	w.nothingLeft()
}

// A VMM that dies in the pause, when its state is saved: the snapshot may stand, and nothing
// holds the task.
func TestDeathInTheCheckpointsPause(t *testing.T) {
	w := newWorld(t).running()
	w.store.block = make(chan struct{})
	done := make(chan error, 1)
	go func() { _, err := w.checkpoint(false); done <- err }()
	vm, _ := w.service.current()
	if !eventually(func() bool { return vm.journal.Load().Phase == journal.Sending && !w.machine.running() }) {
		t.Fatal("it does not begin")
	}
	w.must("kill", w.machine.Kill(t.Context()))
	if !eventually(func() bool { return vm.inState(Stopped) }) {
		t.Fatalf("VM is %s", vm.state)
	}
	close(w.store.block)
	<-done // whether it stands is not what matters
	w.must("delete", w.delete())
	w.nothingLeft()
}

// A task that containerd's client has paused stays so; one that somebody paused is refused
// by name, as is one that has ended.
func TestCheckpointOfAPausedTask(t *testing.T) {
	w := newWorld(t).running()
	if _, err := w.checkpoint(true); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("of a task that runs, as if it were paused: %v", err)
	}
	_, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
	w.must("pause", err)
	if _, err := w.checkpoint(false); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("of a paused task: %v", err)
	}
	r, err := w.checkpoint(true)
	w.must("checkpoint", err)
	vm, _ := w.service.current()
	if !vm.inState(Paused) || w.machine.running() || vm.journal.Load().Phase != journal.Own || !r.GetGoneOn() {
		t.Fatalf("VM is %s, %v", vm.state, r)
	}
	var resume journal.Resume
	w.must("read what it says of the task", json.Unmarshal(w.store.pushed.Resume, &resume))
	if resume.BootID != w.agent.boot {
		t.Errorf("boot %q, want %q", resume.BootID, w.agent.boot)
	}
	_, err = w.service.Resume(ctxNS(t), &taskapi.ResumeRequest{ID: "vm"})
	w.must("resume", err)
	w.wantFree("resumed")
}

// A VM that sleeps without its NICs lacks them in its snapshot, and has them again
// when it goes on. A paused guest cannot let them go.
func TestCheckpointRecycles(t *testing.T) {
	w := recycling(t).running()
	r, err := w.checkpoint(false)
	w.must("checkpoint", err)
	if !r.GetGoneOn() {
		t.Errorf("answer %v", r)
	}
	w.wantFree("after the checkpoint")
	if got := w.machine.nics.list(); !slices.Equal(got, []string{"net0"}) {
		t.Errorf("NICs %v", got)
	}
	_, err = w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
	w.must("pause", err)
	ref := w.ref()
	ref.Operation = "op2"
	_, err = w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: ref, Repository: "r", Checkpoint: true,
		Paused: true})
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("of a paused guest: %v", err)
	}
}

// An exec goes on during a checkpoint, as everything in the VM does.
func TestCheckpointSparesExecs(t *testing.T) {
	w := newWorld(t).running()
	_, err := w.service.Exec(ctxNS(t), execRequest("e"))
	w.must("exec", err)
	_, err = w.service.Start(ctxNS(t), &taskapi.StartRequest{ID: "vm", ExecID: "e"})
	w.must("start exec", err)
	_, err = w.service.Exec(ctxNS(t), execRequest("never started"))
	w.must("exec", err)
	_, err = w.checkpoint(false)
	w.must("checkpoint", err)
	w.wantFree("after it")
}
