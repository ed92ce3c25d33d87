package shim

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// patient is a guest that answers kills when it is let.
type patient struct {
	*fakeAgent
	asked, let chan struct{}
}

func (p *patient) Kill(ctx context.Context, r *agentv1.KillRequest) (*agentv1.KillResponse, error) {
	close(p.asked)
	select {
	case <-p.let:
		return p.fakeAgent.Kill(ctx, r)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A move waits for a call that is under way, such as a kill here and the start of an exec. A call that does not come to
// an end is refused, and named where it has a name.
func TestMoveWaitsForCalls(t *testing.T) {
	w := newWorld(t)
	g := &patient{w.agent, make(chan struct{}), make(chan struct{})}
	w.guest = func(*fakeAgent) Agent { return g }
	w.running()
	w.open("a", "b")
	w.execs = true
	bound := func(d time.Duration) { busyBound = d }
	t.Cleanup(func() { busyBound = longestBusy })
	refused := func(what string) {
		t.Helper()
		bound(20 * time.Millisecond)
		o, err := w.offer()
		if err != nil || !strings.Contains(strings.Join(o.GetObstacles(), ";"), what) {
			t.Errorf("offer with %s: %v, %v", what, o.GetObstacles(), err)
		}
		if _, err := w.send(); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), what) {
			t.Errorf("send with %s: %v", what, err)
		}
		if vm, _ := w.service.current(); !vm.inState(Running) {
			t.Fatalf("VM is %s", vm.state)
		}
		bound(time.Minute)
	}
	_, err := w.service.Exec(ctxNS(t), execRequest("e"))
	w.must("exec", err)
	refused("exec e")
	begun, goOn := make(chan struct{}), make(chan struct{})
	w.at("start process", func() error { close(begun); <-goOn; return nil })
	done := make(chan error, 3)
	go func() {
		_, err := w.service.Start(ctxNS(t), &taskapi.StartRequest{ID: "vm", ExecID: "e"})
		done <- err
	}()
	<-begun
	refused("exec e")
	close(goOn)
	w.must("start", <-done)

	go func() { done <- w.kill("", 28) }()
	<-g.asked
	refused("call of containerd")
	go func() { _, err := w.send(); done <- err }()
	close(g.let)
	for range 2 {
		w.must("kill, and send", <-done)
	}
	if vm, _ := w.service.current(); !vm.inState(Captured) {
		t.Errorf("VM is %s", vm.state)
	}
}

// A capture that comes in the moment in which the task runs and its streams do not flow yet
// waits for them: it would keep them from flowing.
func TestCaptureWaitsForTheStreams(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	may := func() error {
		vm.mu.Lock()
		defer vm.mu.Unlock()
		return (&capture{vm: vm, ref: w.ref(), execs: true}).capturable()
	}
	w.must("capture a VM that runs", may())
	vm.mu.Lock()
	vm.state, vm.owner.state = Starting, TaskStarting
	vm.mu.Unlock()
	s := &starting{vm: vm, task: vm.owner}
	w.must("run", s.run(t.Context(), nil))
	if err := may(); !errors.Is(err, errBusy) {
		t.Errorf("before the streams flow: %v", err)
	}
	s.startTraffic()
	w.must("capture it then", may())
}
