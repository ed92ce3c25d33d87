package shim

import (
	"fmt"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/vmm"
)

// untilTold is a call of a VMM that says so many times that no vCPU was told to run.
func untilTold(times int) func() error {
	return func() error {
		if times--; times < 0 {
			return nil
		}
		return fmt.Errorf("%w: the VMM does not answer: %w", vmm.ErrNotResumed, errdefs.ErrUnavailable)
	}
}

// A VM that stands still, and whose VMM has told no vCPU to run, is whole and this node's. It is tried again, and not
// killed: after a capture that was aborted, after a checkpoint, and by a successor.
func TestResumeThatToldNoVCPU(t *testing.T) {
	abort := func(m *machineService, ref *machinev1.Ref) error {
		_, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: ref})
		return err
	}
	t.Run("capture", func(t *testing.T) {
		w := newWorld(t).running()
		_, err := w.capture()
		w.must("capture", err)
		w.at("resume", untilTold(2))
		w.must("abort", abort(w.machineService(), w.ref()))
		w.wantFree("after it")
	})
	t.Run("checkpoint", func(t *testing.T) {
		w := newWorld(t).running()
		w.at("resume", untilTold(2))
		_, err := w.checkpoint(false)
		w.must("checkpoint", err)
		w.wantFree("after it")
	})
	for _, call := range []string{"adopt", "resume"} {
		t.Run("voted, by a successor, "+call, func(t *testing.T) {
			w := newWorld(t)
			vm, m, _ := orphan(t, w, true)
			w.at(call, untilTold(2))
			w.must("abort", abort(m, w.ref()))
			if !vm.inState(Running) || !w.machine.running() || !lives(w.machine.id) {
				t.Errorf("VM is %s, runs %t", vm.state, w.machine.running())
			}
		})
	}
}

// Who kills a VM whose VMM gets to no resume ends it.
func TestKillEndsAResumeThatToldNoVCPU(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	_, err := w.capture()
	w.must("capture", err)
	tried := make(chan struct{}, 1<<10)
	w.at("resume", func() error {
		select {
		case tried <- struct{}{}:
		default:
		}
		return untilTold(1)()
	})
	aborted := make(chan struct{})
	go func() {
		_, _ = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		close(aborted)
	}()
	<-tried
	<-tried // it is tried again
	_, err = w.service.Kill(t.Context(), &taskapi.KillRequest{ID: "vm", Signal: uint32(unix.SIGKILL), All: true})
	w.must("kill", err)
	<-aborted
	if !vm.inState(Stopped) || w.machine.running() {
		t.Errorf("VM is %s, runs %t", vm.state, w.machine.running())
	}
}

// A machine that was taken over and cannot be resumed is given back before the next try takes it over.
func TestResumeGivesBackWhatItTookOver(t *testing.T) {
	w := newWorld(t)
	vm, m, _ := orphan(t, w, true)
	tries, adopted, detached := 3, 0, 0
	w.at("adopt", func() error { adopted++; return nil })
	w.at("detach", func() error { detached++; return nil })
	w.at("resume", func() error {
		if tries--; tries > 0 {
			return unix.EMFILE
		}
		return nil
	})
	_, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	if adopted != 3 || detached != 2 || !vm.inState(Running) {
		t.Errorf("adopted %d times, given back %d times; VM is %s", adopted, detached, vm.state)
	}
}
