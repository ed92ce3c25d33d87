package shim

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/shim/journal"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// held makes every call of that name wait until it is let go. reached has an element when one waits.
func (w *world) held(name string) (reached <-chan struct{}, letGo func()) {
	at, open := make(chan struct{}, 64), make(chan struct{})
	w.at(name, func() error {
		at <- struct{}{}
		<-open
		return nil
	})
	return at, func() {
		w.at(name, func() error { return nil })
		close(open)
	}
}

// begun answers what a call will answer.
func begun(do func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return done
}

// TestPodEndsUnderCreate: a pod is deleted while one of its containers is being created. The Create takes back what it
// has made before the VM's directory goes. It writes no journal after that, and the shim ends.
func TestPodEndsUnderCreate(t *testing.T) {
	for _, at := range []string{"prepare image", "add disk", "hold", "add container"} {
		t.Run(at, func(t *testing.T) {
			w := newWorld(t).runningPod("web")
			vm, err := w.service.current()
			w.must("find VM", err)
			reached, letGo := w.held(at)
			create := begun(func() error { return w.createMember("late", "busybox") })
			<-reached
			w.must("kill pod", w.kill("", 9))
			w.waitFor("vm")
			w.must("delete web", w.deleteTask("web"))
			deleted := begun(w.delete)
			if !eventually(func() bool { return vm.inState(Deleting) || len(deleted) > 0 }) {
				t.Error("the sandbox is not being deleted")
			}
			letGo()
			if err := <-create; err == nil {
				t.Error("a container was made in a pod that had ended")
			}
			w.must("delete pod", <-deleted)
			if _, err := os.Stat(vm.dir); !os.IsNotExist(err) {
				t.Errorf("the VM's directory is there after its Delete: %v", err)
			}
			for _, p := range w.processes() {
				if !eventually(func() bool { return !lives(p) }) {
					t.Errorf("process %d is left", p.PID)
				}
			}
			select {
			case <-w.service.shutdown.Done():
			case <-time.After(time.Minute):
				t.Error("the shim stays without a task")
			}
		})
	}
}

// TestLastCreateFails: the sandbox was deleted, and the last task of the shim is one whose Create fails.
func TestLastCreateFails(t *testing.T) {
	w := newWorld(t).runningPod()
	vm, err := w.service.current()
	w.must("find VM", err)
	late, _, err := w.service.addMember(vm, "late", func() {})
	w.must("enter a task", err)
	w.must("kill pod", w.kill("", 9))
	w.waitFor("vm")
	deleted := begun(w.delete)
	w.service.leavePod(late)
	close(late.created)
	w.must("delete pod", <-deleted)
	select {
	case <-w.service.shutdown.Done():
	case <-time.After(time.Minute):
		t.Error("the shim stays without a task")
	}
}

// TestDeleteUnderCreate: containerd gives a Create up and calls Delete, while the shim is still at it. Nothing is left
// of the container, and its id is free.
func TestDeleteUnderCreate(t *testing.T) {
	for _, at := range []string{"prepare image", "add disk", "add container"} {
		t.Run(at, func(t *testing.T) {
			w := newWorld(t).runningPod("web")
			vm, err := w.service.current()
			w.must("find VM", err)
			reached, letGo := w.held(at)
			create := begun(func() error { return w.createMember("late", "busybox") })
			<-reached
			deleted := begun(func() error { return w.deleteTask("late") })
			late := func() *Task {
				w.service.mu.Lock()
				defer w.service.mu.Unlock()
				return w.service.tasks["late"]
			}()
			if !eventually(func() bool { return len(deleted) > 0 || late.member.abandoned() }) {
				t.Error("the Create was not given up")
			}
			letGo()
			if err := <-create; err == nil {
				t.Error("a container was made that had been deleted")
			}
			if err := errgrpc.ToNative(<-deleted); err != nil && !errdefs.IsNotFound(err) {
				t.Errorf("delete: %v", err)
			}
			if got := w.agent.has(); !slices.Equal(got, []string{"c1"}) || len(vm.journal.Load().Members) != 1 {
				t.Errorf("the guest has %q, the journal %+v", got, vm.journal.Load().Members)
			}
			w.must("create again", w.createMember("late", "busybox"))
			w.must("start", w.startTask("late"))
		})
	}
}

// TestKillUnderStart: a container that was created gets SIGKILL and Start at a time. Either the Start fails, or the
// signal reaches the process: none runs on that is told to have ended.
func TestKillUnderStart(t *testing.T) {
	w := newWorld(t).runningPod()
	for range 30 {
		w.must("create", w.createMember("web", "alpine"))
		w.service.mu.Lock()
		guest := w.service.tasks["web"].guest
		w.service.mu.Unlock()
		w.agent.heard()
		kill := func() error {
			_, err := w.service.Kill(ctxNS(t), &taskapi.KillRequest{ID: "web", Signal: 9})
			return err
		}
		killed, again := begun(kill), begun(kill)
		started := <-begun(func() error { return w.startTask("web") })
		for _, done := range []<-chan error{killed, again} {
			if err := errgrpc.ToNative(<-done); err != nil && !errdefs.IsNotFound(err) {
				t.Errorf("kill: %v", err)
			}
		}
		w.waitFor("web")
		if started == nil && !slices.Contains(w.agent.heard(), `kill "`+guest+`" 9`) {
			t.Fatal("a process was started, and its end was told without a signal")
		}
		w.must("delete", w.deleteTask("web"))
	}
}

// TestStartOfAHungGuest: a guest that does not answer a container's Start holds up no SIGKILL. One that does not give
// the container up either ends.
func TestStartOfAHungGuest(t *testing.T) {
	for _, gives := range []bool{true, false} {
		w := newWorld(t).runningPod("log")
		undoBound = 200 * time.Millisecond
		t.Cleanup(func() { undoBound = 30 * time.Second })
		w.must("create", w.createMember("web", "alpine"))
		w.agent.hang("start process")
		if !gives {
			w.agent.hang("remove container")
		}
		started := begun(func() error { return w.startTask("web") })
		if !eventually(func() bool { return w.stateOf("web") == tasktypes.Status_RUNNING }) {
			t.Error("the start has not begun")
		}
		_, err := w.service.Kill(ctxNS(t), &taskapi.KillRequest{ID: "web", Signal: 9})
		if err := errgrpc.ToNative(err); err != nil && !errdefs.IsNotFound(err) {
			t.Errorf("kill: %v", err)
		}
		if err := <-started; err == nil {
			t.Error("a start that was killed succeeded")
		}
		w.waitFor("web")
		want := tasktypes.Status_RUNNING
		if !gives {
			want = tasktypes.Status_STOPPED
		}
		if got := w.stateOf("vm"); got != want {
			t.Errorf("the guest gives the container up: %t, and the pod is %s", gives, got)
		}
	}
}

// TestDoubtfulDisk: a VMM fails to plug a disk in and to take it back. For the next container of the image
// it is plugged in anew: that one waits for no disk that is not there.
func TestDoubtfulDisk(t *testing.T) {
	w := newWorld(t).runningPod("web")
	broken := func() error { return errors.New("the VMM does not answer") }
	w.at("add disk", broken)
	w.at("remove disk", broken)
	if err := w.createMember("other", "busybox"); err == nil {
		t.Error("a container without its disk was made")
	}
	w.at("add disk", func() error { return nil })
	w.at("remove disk", func() error { return nil })
	w.must("create again", w.createMember("other", "busybox"))
	if got := w.machine.plugged(); len(got) != 2 {
		t.Errorf("the VM has disks %q", got)
	}
}

// TestClientLeavesUnderCreate: a Create whose client has gone before its end leaves nothing.
func TestClientLeavesUnderCreate(t *testing.T) {
	w := newWorld(t).runningPod("web")
	ctx, cancel := context.WithCancel(ctxNS(t))
	reached, letGo := w.held("add container")
	r := w.memberRequest("late", "alpine")
	create := begun(func() error {
		_, err := w.service.Create(ctx, r)
		return err
	})
	<-reached
	cancel()
	letGo()
	if err := <-create; err == nil {
		t.Error("a Create succeeded whose client has gone")
	}
	vm, err := w.service.current()
	w.must("find VM", err)
	j, err := journal.Read(vm.dir)
	w.must("read journal", err)
	if got := w.agent.has(); !slices.Equal(got, []string{"c1"}) || len(j.Members) != 1 {
		t.Errorf("the guest has %q, the journal %+v", got, j.Members)
	}
}

// TestPodWakesWhileOneIsMade: what is done once the guest runs leaves a container alone that is being made meanwhile.
func TestPodWakesWhileOneIsMade(t *testing.T) {
	w := sleepingPod(t, true)
	w.must("wake", w.armed("web", "log"))
	vm, err := w.service.current()
	w.must("find VM", err)
	if !eventually(func() bool { return vm.inState(Running) }) {
		t.Fatalf("the VM is %s", vm.state)
	}
	made, _, err := w.service.addMember(vm, "made", func() {})
	w.must("begin a Create", err)
	vm.pod.settle(vm.life)
	w.service.leavePod(made)
}

// TestStopBeforeTheHold: StopPodSandbox comes after a hibernate was ordered and before the shim holds the VM. A
// container that was stopped has ended, and its pod sleeps. The sandbox is refused then by the operation's name.
func TestStopBeforeTheHold(t *testing.T) {
	w := newWorld(t)
	w.podNotes = map[string]string{"godwit.dev/vm": "web"}
	w.runningPod("web", "log")
	ref := w.ref()
	w.must("stop web", w.killTask("web"))
	w.waitFor("web")
	_, err := w.capture()
	w.must("capture", err)
	if err := errgrpc.ToNative(w.killTask("vm")); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), ref.GetOperation()) {
		t.Errorf("stop of a pod that is held: %v", err)
	}
	if n := w.ends(); n != 1 {
		t.Errorf("containerd was told of %d ends, not of that of web alone", n)
	}
}

// TestHibernateAfterTheStop: the whole pod was stopped before the shim holds the VM. The order fails, and says so.
func TestHibernateAfterTheStop(t *testing.T) {
	w := newWorld(t)
	w.podNotes = map[string]string{"godwit.dev/vm": "web"}
	w.runningPod("web")
	w.must("stop web", w.killTask("web"))
	w.must("stop pod", w.kill("", 9))
	w.waitFor("vm")
	_, err := w.capture()
	if err := errgrpc.ToNative(err); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("capture of a pod that was stopped: %v", err)
	}
	w.must("delete web", w.deleteTask("web"))
	w.must("delete pod", w.delete())
	w.nothingLeft()
}

// TestKillByACallerThatGoes: containerd dies while it kills a container. The VM of the pod, and its other containers,
// live on.
func TestKillByACallerThatGoes(t *testing.T) {
	w := newWorld(t).runningPod("web", "log")
	ctx, cancel := context.WithCancel(ctxNS(t))
	cancel()
	_, err := w.service.Kill(ctx, &taskapi.KillRequest{ID: "web", Signal: 9})
	w.must("kill", err)
	w.waitFor("web")
	if vm, err := w.service.current(); err != nil || !vm.inState(Running) || !w.machine.running() {
		t.Errorf("the pod ended with its container: %v", err)
	}
}

// slowPod is a guest that looks at a SIGKILL, or that says nothing of what its containers have used.
type slowPod struct {
	*fakeAgent
	looks func(context.Context)
	mute  bool
}

func (p *slowPod) Kill(ctx context.Context, r *agentv1.KillRequest) (*agentv1.KillResponse, error) {
	if p.looks != nil && !r.GetAll() {
		p.looks(ctx)
	}
	return p.fakeAgent.Kill(ctx, r)
}

func (p *slowPod) Stats(ctx context.Context, r *agentv1.StatsRequest) (*agentv1.StatsResponse, error) {
	if p.mute {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return p.fakeAgent.Stats(ctx, r)
}

// TestKillInALazyWake: a container is killed while the RAM of its pod still comes. The guest has the time of any call:
// the VM does not end for one container after the second that its own SIGKILL has.
func TestKillInALazyWake(t *testing.T) {
	patience := make(chan time.Duration, 1)
	w := newWorld(t)
	w.guest = func(a *fakeAgent) Agent {
		return &slowPod{fakeAgent: a, looks: func(ctx context.Context) {
			until, _ := ctx.Deadline()
			patience <- time.Until(until)
		}}
	}
	w.runningPod("web", "log")
	vm, err := w.service.current()
	w.must("find VM", err)
	vm.postcopy.mu.Lock()
	vm.postcopy.fill = &filling{here: make(chan struct{}), over: make(chan struct{})}
	vm.postcopy.mu.Unlock()
	_, err = w.service.Kill(ctxNS(t), &taskapi.KillRequest{ID: "web", Signal: 9})
	w.must("kill", err)
	if got := <-patience; got < guestBound/2 {
		t.Errorf("the guest has %v for the container, before its pod ends", got)
	}
	w.waitFor("web")
	vm.postcopy.mu.Lock()
	vm.postcopy.fill = nil
	vm.postcopy.mu.Unlock()
}

// TestKillOfASlowEnd: a guest has told the end of a container that was killed, and what comes after it takes long. The
// container ends, and its pod does not.
func TestKillOfASlowEnd(t *testing.T) {
	wasKill, wasEnd := killBound, endBound
	t.Cleanup(func() { killBound, endBound = wasKill, wasEnd })
	w := newWorld(t)
	w.guest = func(a *fakeAgent) Agent { return &slowPod{fakeAgent: a, mute: true} }
	w.runningPod("web", "log")
	killBound, endBound = 2*time.Second, 10*time.Second // the end is told in the first
	_, err := w.service.Kill(ctxNS(t), &taskapi.KillRequest{ID: "web", Signal: 9})
	w.must("kill", err)
	w.waitFor("web")
	if vm, err := w.service.current(); err != nil || !vm.inState(Running) || !w.machine.running() {
		t.Errorf("the pod ended with its container: %v", err)
	}
}
