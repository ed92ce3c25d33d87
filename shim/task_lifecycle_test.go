package shim

import (
	"os"
	"strconv"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/google/go-cmp/cmp"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/journal"
)

// failEach runs try with its first call failing, then its second, until none fails.
func failEach(t *testing.T, prepare func(*world), try func(*world) error, check func(*testing.T, *world, string)) {
	for n := 1; ; n++ {
		w := newWorld(t)
		prepare(w)
		w.arm(n)
		err := try(w)
		name := w.fired()
		w.arm(0)
		if name == "" {
			w.must("without a fault", err)
			if n < 4 {
				t.Fatalf("only %d calls could fail: the test sees nothing", n-1)
			}
			return
		}
		t.Run(name, func(t *testing.T) {
			w.t = t
			if err == nil {
				t.Log("a failure that does not matter") // check says what must hold
			}
			check(t, w, name)
		})
	}
}

// Of a boot: a Create that fails at any call leaves nothing, and the next one
// succeeds.
func TestCreateFailsAtEachCall(t *testing.T) {
	failEach(t, func(*world) {}, (*world).create, func(t *testing.T, w *world, _ string) {
		w.nothingLeft()
		if w.records.rec.GetOwner().GetNode() != "" {
			t.Error("the record says that this node owns the VM")
		}
		w.must("create again", w.create())
	})
}

// Of a restore: the snapshot owns the VM afterwards, no operation stays open.
func TestRestoreCreateFailsAtEachCall(t *testing.T) {
	failEach(t, func(w *world) { w.asleep() }, (*world).create, func(t *testing.T, w *world, _ string) {
		w.nothingLeft()
		if w.records.rec.GetOwner().GetDigest() == "" || w.records.rec.GetOperation() != nil {
			t.Errorf("record is %v", w.records.rec)
		}
		w.must("create again", w.create())
	})
}

// A Start that fails leaves a task that has ended and can be deleted.
func TestStartFailsAtEachCall(t *testing.T) {
	failEach(t, func(w *world) { w.must("create", w.create()) }, (*world).start, func(t *testing.T, w *world, _ string) {
		w.must("delete", w.delete())
		w.nothingLeft()
	})
}

// A resume that fails before the guest ran gives the VM back to its snapshot. After that it is lost here, and never
// silently asleep and running.
func TestResumeFailsAtEachCall(t *testing.T) {
	failEach(t, func(w *world) {
		w.asleep()
		w.must("create", w.create())
	}, (*world).start, func(t *testing.T, w *world, name string) {
		if vm, err := w.service.current(); err != nil || vm.inState(Running) {
			return // closing the operation failed: the VM runs, the record is committed
		}
		ran := w.records.phase == nodev1.Phase_PHASE_LOST_AT_DEST
		if asleep := w.records.rec.GetOwner().GetDigest() != ""; asleep == ran {
			t.Errorf("%s failed: asleep %v, phase %v", name, asleep, w.records.phase)
		}
		if w.records.rec.GetOperation() != nil {
			t.Error("the operation is open")
		}
		w.must("delete", w.delete())
		w.nothingLeft()
	})
}

// A guest that is not the one that went to sleep fails the restore.
func TestRestoreRefusesAnotherBoot(t *testing.T) {
	w := newWorld(t).asleep()
	w.must("create", w.create())
	w.agent.boot = "boot-2"
	if err := errgrpc.ToNative(w.start()); !errdefs.IsDataLoss(err) {
		t.Errorf("start = %v, want data loss", err)
	}
}

// R8: a capture that fails anywhere leaves the VM running as before, and the next
// one succeeds.
func TestCaptureFailsAtEachCall(t *testing.T) {
	capture := func(w *world) error { _, err := w.capture(); return err }
	failEach(t, func(w *world) { w.running() }, capture, func(t *testing.T, w *world, name string) {
		vm, err := w.service.current()
		w.must("find", err)
		if !vm.inState(Running) || !w.machine.running() || !w.net.up || vm.journal.Load().Phase != journal.Own {
			t.Fatalf("%s failed: VM is %s, journal %s", name, vm.state, vm.journal.Load().Phase)
		}
		_, err = w.capture()
		w.must("capture again", err)
	})
}

func processState(t *testing.T, pid int) byte {
	t.Helper()
	data, err := os.ReadFile(procStat(pid))
	if err != nil {
		t.Fatal(err)
	}
	for i := len(data) - 1; i >= 0; i-- {
		if data[i] == ')' {
			return data[i+2]
		}
	}
	return 0
}

// While an operation holds the VM, changing calls are refused and
// reading ones answer.
func TestHeldVM(t *testing.T) {
	w := newWorld(t).running()
	_, err := w.capture()
	w.must("capture", err)
	s, ctx := w.service, ctxNS(t)
	for name, call := range map[string]func() error{
		"kill":   func() error { _, err := s.Kill(ctx, &taskapi.KillRequest{ID: "vm", Signal: 9}); return err },
		"exec":   func() error { _, err := s.Exec(ctx, execRequest("e")); return err },
		"pause":  func() error { _, err := s.Pause(ctx, &taskapi.PauseRequest{ID: "vm"}); return err },
		"update": func() error { _, err := s.Update(ctx, &taskapi.UpdateTaskRequest{ID: "vm"}); return err },
		"delete": w.delete,
		"resize": func() error { _, err := s.ResizePty(ctx, &taskapi.ResizePtyRequest{ID: "vm"}); return err },
		"start":  w.start,
		"resume": func() error { _, err := s.Resume(ctx, &taskapi.ResumeRequest{ID: "vm"}); return err },
	} {
		if err := errgrpc.ToNative(call()); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s = %v, want failed precondition", name, err)
		}
	}
	for name, call := range map[string]func() error{
		"state": func() error { _, err := s.State(ctx, &taskapi.StateRequest{ID: "vm"}); return err },
		"pids":  func() error { _, err := s.Pids(ctx, &taskapi.PidsRequest{ID: "vm"}); return err },
		"stats": func() error { _, err := s.Stats(ctx, &taskapi.StatsRequest{ID: "vm"}); return err },
		"connect": func() error {
			_, err := s.Connect(ctx, &taskapi.ConnectRequest{ID: "vm"})
			return err
		},
	} {
		if err := call(); err != nil {
			t.Errorf("%s = %v", name, err)
		}
	}
}

// R10: the same order answers the same, another or stale one touches nothing.
func TestCaptureIsIdempotentAndFenced(t *testing.T) {
	w := newWorld(t).running()
	a, err := w.capture()
	w.must("capture", err)
	b, err := w.capture()
	w.must("capture again", err)
	if a.GetDigest() != b.GetDigest() {
		t.Errorf("digests %s and %s", a.GetDigest(), b.GetDigest())
	}
	stale := w.ref()
	stale.Attempt = 7
	m := w.machineService()
	for name, call := range map[string]func() error{
		"vote":    func() error { _, err := m.Vote(t.Context(), &machinev1.VoteRequest{Ref: stale}); return err },
		"abort":   func() error { _, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: stale}); return err },
		"release": func() error { _, err := m.Release(t.Context(), &machinev1.ReleaseRequest{Ref: stale}); return err },
		"release before the vote": func() error {
			_, err := m.Release(t.Context(), &machinev1.ReleaseRequest{Ref: w.ref(), Digest: a.GetDigest()})
			return err
		},
	} {
		if err := errgrpc.ToNative(call()); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s = %v, want failed precondition", name, err)
		}
	}
	if vm, _ := w.service.current(); !vm.inState(Captured) {
		t.Errorf("VM is %s", vm.state)
	}
}

// An abort in the middle of the transfer ends it and the VM runs on: what was aborted is no
// success, and no other capture was let in.
func TestAbortDuringCapture(t *testing.T) {
	w := newWorld(t).running()
	w.store.block = make(chan struct{})
	done := make(chan error, 1)
	go func() { _, err := w.capture(); done <- err }()
	vm, _ := w.service.current()
	if !eventually(func() bool { return vm.journal.Load().Phase == journal.Sending && !w.machine.running() }) {
		t.Fatal("capture does not begin")
	}
	other := w.ref()
	other.Operation = "op2"
	_, err := w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: other, Repository: "r", Tag: "t2"})
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("a second capture beside it: %v", err)
	}
	_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	if err := <-done; err == nil {
		t.Error("aborted capture succeeded")
	}
	if !vm.inState(Running) || !w.machine.running() {
		t.Errorf("VM is %s", vm.state)
	}
}

// An abort before the pause: the VM has not stood still for a moment, and the next capture
// of it succeeds.
func TestAbortBeforePause(t *testing.T) {
	w := newWorld(t).running()
	w.store.early = make(chan struct{})
	done := make(chan error, 1)
	go func() { _, err := w.capture(); done <- err }()
	vm, _ := w.service.current()
	if !eventually(func() bool { return vm.journal.Load().Phase == journal.Sending }) {
		t.Fatal("capture does not begin")
	}
	if !w.machine.running() {
		t.Error("the VM is paused before pages were pushed")
	}
	_, err := w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	if err := <-done; err == nil {
		t.Error("aborted capture succeeded")
	}
	if !vm.inState(Running) || !w.machine.running() || vm.journal.Load().Phase != journal.Own {
		t.Errorf("VM is %s, %s", vm.state, vm.journal.Load().Phase)
	}
	w.store.early = nil
	w.aborted++
	_, err = w.capture()
	w.must("capture again", err)
}

// An order of an attempt that was aborted, held up on its way, does not take the VM again: that hold would never end.
func TestLateOrders(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	m := w.machineService()
	for _, captured := range []bool{true, false} { // also where the abort came first
		late := w.ref()
		if captured {
			_, err := w.capture()
			w.must("capture", err)
		}
		_, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: late})
		w.must("abort", err)
		for name, order := range map[string]func() error{
			"capture": func() error { _, err := w.capture(); return err },
			"offer":   func() error { _, err := m.Offer(t.Context(), &machinev1.OfferRequest{Ref: late}); return err },
			"send": func() error {
				_, err := m.Send(t.Context(), &machinev1.SendRequest{Ref: late, Address: "a:1", Channel: "c",
					Certificate: []byte{1}})
				return err
			},
		} {
			if err := errgrpc.ToNative(order()); !errdefs.IsAborted(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !vm.inState(Running) || !w.machine.running() || vm.journal.Load().Phase != journal.Own {
			t.Errorf("VM is %s, %s", vm.state, vm.journal.Load().Phase)
		}
		w.aborted++
	}
	_, err := w.capture()
	w.must("the next attempt", err)
}

// A VMM that dies while pages are pushed ends the capture, and the task.
func TestDeathBeforePause(t *testing.T) {
	w := newWorld(t).running()
	w.store.early = make(chan struct{})
	done := make(chan error, 1)
	go func() { _, err := w.capture(); done <- err }()
	vm, _ := w.service.current()
	if !eventually(func() bool { return vm.journal.Load().Phase == journal.Sending }) {
		t.Fatal("capture does not begin")
	}
	w.must("kill", w.machine.Kill(t.Context()))
	if err := <-done; err == nil {
		t.Error("a capture of nothing succeeded")
	}
	if !eventually(func() bool { return vm.inState(Stopped) }) {
		t.Errorf("VM is %s", vm.state)
	}
}

// Release ends the task with status 0; the events of a life come once, in order.
func TestEventsOfALife(t *testing.T) {
	w := newWorld(t)
	events := w.events
	w.asleep()
	want := []string{"/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"}
	if !eventually(func() bool { return len(events.all()) == len(want) }) || !cmp.Equal(want, events.all()) {
		t.Error(cmp.Diff(want, events.all()))
	}
}

// A restored task is CREATED until Start, and a second Start succeeds.
func TestResumeOnce(t *testing.T) {
	w := newWorld(t).asleep()
	w.must("create", w.create())
	vm, _ := w.service.current()
	if !vm.inState(Created) || vm.journal.Load().Phase != journal.Ready {
		t.Fatalf("VM is %s, journal %s", vm.state, vm.journal.Load().Phase)
	}
	w.must("start", w.start())
	w.must("start again", w.start())
	if got := w.records.rec; got.GetOwner().GetNode() != "a" || got.GetGeneration() != 3 || got.GetOperation() != nil {
		t.Errorf("record is %v", got)
	}
}

// A restored task that is deleted before it ran gives the snapshot back.
func TestDeleteOfAResumeThatNeverCame(t *testing.T) {
	w := newWorld(t).asleep()
	w.must("create", w.create())
	w.must("delete", w.delete())
	w.nothingLeft()
	if w.records.rec.GetOwner().GetDigest() == "" || w.records.rec.GetOperation() != nil {
		t.Errorf("record is %v", w.records.rec)
	}
}

// Of delete: a dead VM is cleaned up, one that an operation holds is
// not touched.
func TestCleanUpObeysTheJournal(t *testing.T) {
	w := newWorld(t).running()
	dir := w.cfg.VMDir("ns", "vm")
	_, err := w.capture()
	w.must("capture", err)
	if _, err := CleanUp(t.Context(), w.host(), dir, ""); err != nil {
		t.Fatal(err)
	}
	if !lives(w.machine.id) {
		t.Fatal("cleanup killed a VM that an operation holds")
	}
	_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	if _, err := CleanUp(t.Context(), w.host(), dir, ""); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft()
	if _, err := CleanUp(t.Context(), w.host(), dir, ""); err != nil {
		t.Errorf("second cleanup: %v", err)
	}
}

// A daemon that cannot be reached fails the Create as Unavailable: nothing boots.
func TestCreateWithoutTheRecordIsUnavailable(t *testing.T) {
	w := newWorld(t)
	w.arm(2) // the first one looks into the image
	if err := errgrpc.ToNative(w.create()); !errdefs.IsUnavailable(err) {
		t.Errorf("create = %v, want unavailable", err)
	}
}

func procStat(pid int) string { return "/proc/" + strconv.Itoa(pid) + "/stat" }
