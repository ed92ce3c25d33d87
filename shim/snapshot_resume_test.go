package shim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
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

// stuckResume has a VM given back whose VMM gets to no resume. tries hears of each one; over closes when the abort has
// ended.
func stuckResume(w *world) (tries <-chan struct{}, over <-chan struct{}) {
	_, err := w.capture()
	w.must("capture", err)
	tried, aborted := make(chan struct{}, 1<<10), make(chan struct{})
	w.at("resume", func() error {
		select {
		case tried <- struct{}{}:
		default:
		}
		return untilTold(1)()
	})
	go func() {
		_, _ = w.machineService().Abort(w.t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		close(aborted)
	}()
	return tried, aborted
}

// Who kills a VM whose VMM gets to no resume ends it, or the container of a pod. Until then calls say so.
func TestKillEndsAResumeThatToldNoVCPU(t *testing.T) {
	for _, id := range []string{"vm", "one"} {
		w := newWorld(t)
		if id != "vm" {
			w = namedPod(t)
		}
		w.cfg.Timeouts.Abort = config.Duration(50 * time.Millisecond)
		if id == "vm" {
			w.running()
		} else {
			w.runningPod(id)
		}
		vm, _ := w.service.current()
		tried, over := stuckResume(w)
		<-tried
		<-tried // it is tried again
		_, err := w.service.Kill(t.Context(), &taskapi.KillRequest{ID: id, Signal: uint32(unix.SIGKILL), All: true})
		w.must("kill", err)
		<-over
		if !vm.inState(Stopped) || w.machine.running() {
			t.Errorf("%s: VM is %s, runs %t", id, vm.state, w.machine.running())
		}
	}
}

// A kill ends the first try, too.
func TestKillEndsTheFirstTryOfAResume(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	_, err := w.capture()
	w.must("capture", err)
	w.at("resume", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := w.service.Kill(ctx, &taskapi.KillRequest{ID: "vm", Signal: uint32(unix.SIGKILL), All: true})
		if !errors.Is(errgrpc.ToNative(err), context.DeadlineExceeded) {
			t.Errorf("kill = %v; it waits for the end", err)
		}
		return untilTold(1)()
	})
	_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	if err == nil || !vm.inState(Stopped) {
		t.Errorf("abort: %v; VM is %s", err, vm.state)
	}
}

// The kill of one container does not end a VM that can be resumed in time: it ends the container.
func TestKillOfAContainerWaitsForTheResume(t *testing.T) {
	w := namedPod(t).runningPod("one")
	vm, _ := w.service.current()
	_, err := w.capture()
	w.must("capture", err)
	killed := make(chan error, 1)
	tries := 0
	w.at("resume", func() error {
		if tries++; tries == 2 {
			go func() {
				_, err := w.service.Kill(t.Context(), &taskapi.KillRequest{ID: "one", Signal: uint32(unix.SIGKILL)})
				killed <- err
			}()
		}
		if tries < 4 {
			return untilTold(1)()
		}
		return nil
	})
	_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	w.must("kill", <-killed)
	if !vm.inState(Running) || !w.machine.running() {
		t.Errorf("VM is %s, runs %t", vm.state, w.machine.running())
	}
}

// While a VM is not resumed for so long, a call that is refused says what ends it.
func TestStuckResumeSaysHowToEndIt(t *testing.T) {
	w := newWorld(t)
	w.cfg.Timeouts.Abort = config.Duration(50 * time.Millisecond)
	w.running()
	_, over := stuckResume(w)
	term := func() error {
		_, err := w.service.Kill(t.Context(), &taskapi.KillRequest{ID: "vm", Signal: uint32(unix.SIGTERM)})
		return err
	}
	if !eventually(func() bool { err := term(); return err != nil && strings.Contains(err.Error(), "SIGKILL") }) {
		t.Errorf("SIGTERM: %v", term())
	}
	_, err := w.service.Kill(t.Context(), &taskapi.KillRequest{ID: "vm", Signal: uint32(unix.SIGKILL)})
	w.must("kill", err)
	<-over
}

// What no time mends is not tried for ever, and a VM that no task can kill is not either.
func TestResumeByASuccessorEnds(t *testing.T) {
	defer func(d time.Duration) { adoptedPatience = d }(adoptedPatience)
	for name, fails := range map[string]error{
		"another VMM": fmt.Errorf("another version: %w", errdefs.ErrFailedPrecondition),
		"no driver":   errdefs.ErrNotImplemented,
		"silent":      errdefs.ErrUnavailable,
	} {
		adoptedPatience = time.Hour
		if name == "silent" {
			adoptedPatience = 50 * time.Millisecond
		}
		w := newWorld(t)
		vm, m, _ := orphan(t, w, true)
		w.at("adopt", func() error { return fails })
		_, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		if err == nil || !vm.inState(Stopped) || lives(w.machine.id) {
			t.Errorf("%s: abort: %v; VM is %s", name, err, vm.state)
		}
	}
	w := newWorld(t).running()
	vm, _ := w.service.current()
	_, err := w.capture()
	w.must("capture", err)
	w.at("resume", func() error { return fmt.Errorf("%w: %w", vmm.ErrNotResumed, vmm.ErrUnreachable) })
	_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	if err == nil || !vm.inState(Stopped) {
		t.Errorf("a connection that has ended: abort: %v; VM is %s", err, vm.state)
	}
}

// An abort of a checkpoint whose VM is not resumed waits no longer than its caller.
func TestAbortLeavesAStuckCheckpoint(t *testing.T) {
	w := newWorld(t).running()
	tried, let := make(chan struct{}, 1<<10), make(chan struct{})
	w.at("resume", func() error {
		select {
		case <-let:
			return nil
		case tried <- struct{}{}:
		default:
		}
		return untilTold(1)()
	})
	over := make(chan struct{})
	go func() { _, _ = w.checkpoint(false); close(over) }()
	<-tried
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		_, err := w.machineService().Abort(ctx, &machinev1.AbortRequest{Ref: w.ref()})
		answered <- err
	}()
	select {
	case err := <-answered:
		if !errdefs.IsUnavailable(errgrpc.ToNative(err)) {
			t.Errorf("abort = %v, want Unavailable", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("the abort waits on")
	}
	close(let)
	<-over
	w.wantFree("after it")
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
