package shim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/stdio"
)

// lateAgent is a guest that stands still: a Start is carried out when it goes on, also if its caller has given up, and
// a Kill is heard then.
type lateAgent struct {
	*fakeAgent
	old          bool // an earlier build
	came         chan string
	starts, goes chan struct{} // closed when the guest gets to a Start, and to all else

	mu      sync.Mutex
	runs    map[string]bool
	barred  map[string]bool
	ran     int
	bounded bool // a kill had less than the VM's life
}

func late(f *fakeAgent, old bool) *lateAgent {
	return &lateAgent{
		fakeAgent: f, old: old, came: make(chan string, 1), starts: make(chan struct{}), goes: make(chan struct{}),
		runs: map[string]bool{}, barred: map[string]bool{},
	}
}

func (a *lateAgent) Start(ctx context.Context, r *agentv1.StartRequest) (*agentv1.StartResponse, error) {
	if r.GetId() == "" {
		return a.fakeAgent.Start(ctx, r)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		<-a.starts
		a.mu.Lock()
		defer a.mu.Unlock()
		if !a.barred[r.GetId()] {
			a.runs[r.GetId()] = true
			a.ran++
		}
	}()
	a.came <- r.GetId()
	select {
	case <-over:
		return &agentv1.StartResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (a *lateAgent) Kill(ctx context.Context, r *agentv1.KillRequest) (*agentv1.KillResponse, error) {
	_, bounded := ctx.Deadline()
	a.mu.Lock()
	a.bounded = a.bounded || bounded
	a.mu.Unlock()
	select {
	case <-a.goes:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.old && r.GetNever() {
		a.barred[r.GetId()] = true
	} else if !a.runs[r.GetId()] {
		return nil, fmt.Errorf("process %q: %w", r.GetId(), errdefs.ErrNotFound)
	}
	delete(a.runs, r.GetId())
	return a.fakeAgent.Kill(ctx, r)
}

func (a *lateAgent) Remove(ctx context.Context, r *agentv1.RemoveRequest) (*agentv1.RemoveResponse, error) {
	if a.exit(r.GetId()); len(a.exits[r.GetId()]) == 0 {
		return nil, fmt.Errorf("process %q: %w", r.GetId(), errdefs.ErrNotFound)
	}
	return a.fakeAgent.Remove(ctx, r)
}

func (a *lateAgent) live() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.runs))
}

// givenUp is a running VM in a task that is paused by now. Its guest stands still with the Start of an exec that its
// client has given up.
func givenUp(t *testing.T, old bool) (*world, *lateAgent) {
	t.Helper()
	w := newWorld(t)
	a := late(w.agent, old)
	w.guest = func(*fakeAgent) Agent { return a }
	w.running()
	_, err := w.service.Exec(ctxNS(t), execRequest("e"))
	w.must("exec", err)
	ctx, leave := context.WithCancel(ctxNS(t))
	defer leave()
	started := make(chan error, 1)
	go func() {
		_, err := w.service.Start(ctx, &taskapi.StartRequest{ID: "vm", ExecID: "e"})
		started <- err
	}()
	<-a.came
	_, err = w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
	w.must("pause", err)
	leave()
	if err := <-started; err == nil {
		t.Fatal("a start that was given up has succeeded")
	}
	return w, a
}

// A Start that was given up while the guest stood still is ended when that goes on, however long it takes. The exec has
// ended for containerd, and can be deleted. No snapshot is made of what the guest may still run.
func TestStartIsGivenUp(t *testing.T) {
	busyBound = 0
	t.Cleanup(func() { busyBound = longestBusy })
	for _, old := range []bool{false, true} {
		for _, killFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("old %v kill first %v", old, killFirst), func(t *testing.T) {
				w, a := givenUp(t, old)
				s := w.service
				r, err := s.State(ctxNS(t), &taskapi.StateRequest{ID: "vm", ExecID: "e"})
				if err != nil || r.GetStatus() != tasktypes.Status_STOPPED || r.GetExitStatus() != 255 {
					t.Errorf("state of the exec: %v, %v", r, err)
				}
				if err := w.kill("e", 9); !errdefs.IsNotFound(err) {
					t.Errorf("kill of the exec: %v", err)
				}
				_, err = s.Delete(ctxNS(t), &taskapi.DeleteRequest{ID: "vm", ExecID: "e"})
				w.must("delete exec", err)
				refused := func(when, remedy string) {
					t.Helper()
					_, err := w.checkpoint(when == "paused")
					if err := errgrpc.ToNative(err); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "exec e") ||
						!strings.Contains(err.Error(), remedy) {
						t.Errorf("%s: checkpoint = %v", when, err)
					}
				}
				refused("paused", "ctr task resume")
				_, err = s.Resume(ctxNS(t), &taskapi.ResumeRequest{ID: "vm"})
				w.must("resume", err)
				refused("resumed", "")
				first, second := a.starts, a.goes
				if killFirst {
					first, second = second, first
				}
				close(first)
				if killFirst && !old {
					vm, _ := s.current()
					if !eventually(func() bool { vm.mu.Lock(); defer vm.mu.Unlock(); return len(vm.owner.orphans) == 0 }) {
						t.Error("the guest has said that it never runs, and nobody believes it")
					}
				} else if !killFirst && !eventually(func() bool { return len(a.live()) == 1 }) {
					t.Fatal("the guest has not run what it was asked for")
				}
				close(second)
				w.settled(a)
				if killFirst && !old && a.ran > 0 {
					t.Error("a process ran that nobody wanted by then")
				}
				if a.bounded {
					t.Error("a guest that stands still for long would not be told")
				}
				_, err = w.capture()
				w.must("capture", err)
			})
		}
	}
}

// settled waits until the guest has nothing of a Start that was given up, and the shim knows.
func (w *world) settled(a *lateAgent) {
	w.t.Helper()
	vm, _ := w.service.current()
	if !eventually(func() bool { vm.mu.Lock(); defer vm.mu.Unlock(); return len(vm.owner.orphans) == 0 }) {
		w.t.Errorf("%q is still held against the VM", vm.owner.orphans[0].id)
	}
	if live := a.live(); len(live) > 0 {
		w.t.Errorf("%q runs, known to nobody", live)
	}
}

// The end of the VM is the end of what it may still run.
func TestStartIsGivenUpAndTheVMEnds(t *testing.T) {
	w, a := givenUp(t, true)
	w.must("kill", w.kill("", 9))
	close(a.goes) // as the end of the connection would
	w.settled(a)
	w.must("delete", w.delete())
	w.nothingLeft()
}

// forgetful is a guest of an earlier build that never hears of what it was to start.
type forgetful struct {
	*fakeAgent
	asked int
}

func (f *forgetful) Kill(context.Context, *agentv1.KillRequest) (*agentv1.KillResponse, error) {
	f.asked++
	return nil, errdefs.ErrNotFound
}

func (f *forgetful) Remove(context.Context, *agentv1.RemoveRequest) (*agentv1.RemoveResponse, error) {
	return nil, errdefs.ErrNotFound
}

// A guest of an earlier build, which cannot promise anything, is believed after a while.
func TestStartThatNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &forgetful{fakeAgent: newFakeAgent(&faults{})}
		vm := bareVM(t, f)
		if !vm.owner.endOrphan(t.Context(), vm.owner.newProcess("e", stdio.URIs{}, nil)) || f.asked != lateTries+1 {
			t.Errorf("it was asked %d times", f.asked)
		}
	})
}

// A command of the shim's own that cannot be ended, for the guest stands still, is followed like any other process
// without a caller.
func TestCommandOfAGuestThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := late(newFakeAgent(&faults{}), false)
		vm := bareVM(t, a)
		left := func() int { vm.mu.Lock(); defer vm.mu.Unlock(); return len(vm.owner.orphans) }
		begun := time.Now()
		p := vm.owner.unendedCommand("/ready#1")
		if left() != 1 {
			t.Error("an operation gets the VM while the command is being ended")
		}
		vm.owner.killCommand(p)
		if took := time.Since(begun); took != guestBound || left() != 1 {
			t.Errorf("it was waited for %v, and %d are followed", took, left())
		}
		close(a.goes)
		synctest.Wait()
		if !a.barred["/ready#1"] || left() != 0 {
			t.Errorf("the guest was told of %v, and %d are followed", a.barred, left())
		}
	})
}
