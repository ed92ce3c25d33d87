package shim

import (
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// An exec that is being created, or runs, is refused by name before anything changes. Asked to end execs, the capture
// ends them with 137 before the pause.
func TestCaptureAndExecs(t *testing.T) {
	w := newWorld(t).running()
	s, ctx := w.service, ctxNS(t)
	busyBound = 0
	t.Cleanup(func() { busyBound = longestBusy })
	_, err := s.Exec(ctx, execRequest("shell"))
	w.must("exec", err)
	refused := func(when string) {
		t.Helper()
		_, err := w.capture()
		if err := errgrpc.ToNative(err); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "shell") {
			t.Errorf("%s: capture = %v", when, err)
		}
		if vm, _ := s.current(); !vm.inState(Running) || !w.machine.running() {
			t.Errorf("%s: a refused capture changed the VM", when)
		}
	}
	refused("created")
	_, err = s.Start(ctx, &taskapi.StartRequest{ID: "vm", ExecID: "shell"})
	w.must("start exec", err)
	refused("running")

	_, err = w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: w.ref(), Repository: "r",
		EndExecs: true})
	w.must("capture that ends execs", err)
	r, err := s.Wait(ctx, &taskapi.WaitRequest{ID: "vm", ExecID: "shell"})
	if err != nil || r.GetExitStatus() != killed {
		t.Errorf("wait for the exec = %v, %v", r, err)
	}
	if vm, _ := s.current(); !vm.inState(Captured) || vm.owner.init.exited {
		t.Error("the end of the execs was more than that")
	}
	if _, err := s.Delete(ctx, &taskapi.DeleteRequest{ID: "vm", ExecID: "shell"}); err != nil {
		t.Errorf("delete of the ended exec = %v", err)
	}
}

// The classes that containerd's clients read: a duplicate, an unknown, an unstarted and
// a finished exec.
func TestExecClasses(t *testing.T) {
	w := newWorld(t).running()
	s, ctx := w.service, ctxNS(t)
	add := func() error {
		_, err := s.Exec(ctx, execRequest("e"))
		return errgrpc.ToNative(err)
	}
	kill := func(id string) error {
		_, err := s.Kill(ctx, &taskapi.KillRequest{ID: "vm", ExecID: id, Signal: 15})
		return errgrpc.ToNative(err)
	}
	w.must("exec", add())
	if err := add(); !errdefs.IsAlreadyExists(err) {
		t.Errorf("second exec = %v", err)
	}
	if err := kill("x"); !errdefs.IsNotFound(err) {
		t.Errorf("kill of an unknown exec = %v", err)
	}
	if err := kill("e"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("kill of an unstarted exec = %v", err)
	}
	_, err := s.Start(ctx, &taskapi.StartRequest{ID: "vm", ExecID: "e"})
	w.must("start exec", err)
	w.must("kill exec", kill("e"))
	if r, err := s.Wait(ctx, &taskapi.WaitRequest{ID: "vm", ExecID: "e"}); err != nil || r.GetExitStatus() != 143 {
		t.Errorf("wait = %v, %v", r, err)
	}
	if err := kill("e"); !errdefs.IsNotFound(err) {
		t.Errorf("kill of a finished exec = %v", err)
	}
}

// A Delete of an exec does not wait for the guest to forget it. A capture does.
func TestDeleteOfAnExecIsAnsweredAtOnce(t *testing.T) {
	w := newWorld(t).running()
	s, ctx := w.service, ctxNS(t)
	_, err := s.Exec(ctx, execRequest("e"))
	w.must("exec", err)
	_, err = s.Start(ctx, &taskapi.StartRequest{ID: "vm", ExecID: "e"})
	w.must("start", err)
	_, err = s.Kill(ctx, &taskapi.KillRequest{ID: "vm", ExecID: "e", Signal: 9})
	w.must("kill", err)
	_, err = s.Wait(ctx, &taskapi.WaitRequest{ID: "vm", ExecID: "e"})
	w.must("wait", err)
	asked, forget := make(chan struct{}), make(chan struct{})
	w.at("remove", func() error { close(asked); <-forget; return nil })
	deleted := make(chan error, 1)
	go func() {
		_, err := s.Delete(ctx, &taskapi.DeleteRequest{ID: "vm", ExecID: "e"})
		deleted <- err
	}()
	select {
	case err := <-deleted:
		w.must("delete", err)
	case <-time.After(time.Minute):
		t.Error("Delete waits for the guest")
	}
	<-asked
	vm, err := s.current()
	w.must("find VM", err)
	vm.mu.Lock()
	calls := vm.op.calls
	vm.mu.Unlock()
	if calls != 1 {
		t.Errorf("a capture sees %d calls under way", calls)
	}
	close(forget)
	if _, err = w.capture(); err != nil {
		t.Errorf("capture: %v", err)
	}
}
