package shim

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
)

// withLastWords gives a request's container a termination log, and answers that of the host.
func (w *world) withLastWords(r *taskapi.CreateTaskRequest) (_ *taskapi.CreateTaskRequest, log string) {
	w.t.Helper()
	log = filepath.Join(w.t.TempDir(), "log")
	w.must("make termination log", os.WriteFile(log, nil, 0o600))
	return w.edit(r, func(oci *specs.Spec) {
		oci.Mounts = append(oci.Mounts, specs.Mount{Destination: "/dev/termination-log", Type: "bind", Source: log,
			Options: []string{"rbind", "rw"}})
	}), log
}

// passing is a pod whose containers web, which has a termination log, and log run. It is being captured: before
// the pause it waits for early, and in it for block.
func passing(t *testing.T, guest func(*fakeAgent) Agent) (w *world, vm *VM, log string, captured <-chan error) {
	t.Helper()
	w = newWorld(t)
	w.guest, w.podNotes = guest, map[string]string{"godwit.dev/vm": "web"}
	w.runningPod("log")
	r, log := w.withLastWords(w.memberRequest("web", "alpine"))
	_, err := w.service.Create(ctxNS(t), r)
	w.must("create web", err)
	w.must("start web", w.startTask("web"))
	w.agent.mu.Lock()
	w.agent.pod.last = "bye"
	w.agent.mu.Unlock()
	vm, err = w.service.current()
	w.must("find VM", err)
	w.store.early, w.store.block = make(chan struct{}), make(chan struct{})
	done := begun(func() error { _, err := w.capture(); return err })
	if !eventually(func() bool { return vm.inState(Capturing) }) {
		t.Fatalf("the VM is %s", vm.state)
	}
	return w, vm, log, done
}

// wantLastWords wants the end of web, with what it said last.
func (w *world) wantLastWords(log string) {
	w.t.Helper()
	if got := w.waitFor("web"); got != 3 {
		w.t.Errorf("web ended with %d", got)
	}
	if data, err := os.ReadFile(log); err != nil || string(data) != "bye" {
		w.t.Errorf("its last words are %q: %v", data, err)
	}
}

// TestLastWordsInAPass: a container ends while its pod runs on in the passes of a snapshot. Its last words, and its
// last figures, are those of its end.
func TestLastWordsInAPass(t *testing.T) {
	w, vm, log, captured := passing(t, nil)
	vm.mu.Lock()
	web := vm.tasks["web"]
	vm.mu.Unlock()
	w.agent.exit("c2") <- 3
	w.wantLastWords(log)
	if web.stats.cached().GetMemoryCurrent() != 42 {
		t.Errorf("its last figures are %v", web.stats.cached())
	}
	close(w.store.early)
	close(w.store.block)
	w.must("capture", <-captured)
}

// slowEnd is a guest that does not kill what is left of a container until it is let go.
type slowEnd struct {
	*fakeAgent
	asked chan struct{}
	letGo chan struct{}
}

func (s *slowEnd) Kill(ctx context.Context, r *agentv1.KillRequest) (*agentv1.KillResponse, error) {
	if !r.GetAll() {
		return s.fakeAgent.Kill(ctx, r)
	}
	s.asked <- struct{}{}
	select {
	case <-s.letGo:
		return &agentv1.KillResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestLastWordsAfterAPause: the pod is paused while one of its containers ends. Its end is not told of a VM that stands
// still. It comes with its last words when the operation is called off.
func TestLastWordsAfterAPause(t *testing.T) {
	slow := &slowEnd{asked: make(chan struct{}, 64), letGo: make(chan struct{})}
	w, vm, log, captured := passing(t, func(a *fakeAgent) Agent { slow.fakeAgent = a; return slow })
	w.agent.exit("c2") <- 3
	<-slow.asked
	begun := time.Now()
	close(w.store.early)
	if !eventually(func() bool { return !w.machine.running() }) || time.Since(begun) > endBound/2 {
		t.Errorf("the pause came after %v", time.Since(begun))
	}
	close(w.store.block)
	w.must("capture", <-captured)
	close(slow.letGo)
	if got := w.stateOf("web"); got != tasktypes.Status_RUNNING {
		t.Errorf("web is %s while its VM stands still", got)
	}
	_, err := w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	w.wantLastWords(log)
	if !vm.inState(Running) {
		t.Errorf("the VM is %s", vm.state)
	}
}

// TestEndOfAPauseOnDisk: a container ends while its pod stands still, and the pod leaves with a snapshot. Its bundle
// has its own end, as its client is told, and not the VM's.
func TestEndOfAPauseOnDisk(t *testing.T) {
	slow := &slowEnd{asked: make(chan struct{}, 64), letGo: make(chan struct{})}
	w, vm, _, captured := passing(t, func(a *fakeAgent) Agent { slow.fakeAgent = a; return slow })
	vm.mu.Lock()
	dir := vm.tasks["web"].bundle.Dir
	vm.mu.Unlock()
	w.agent.exit("c2") <- 3
	<-slow.asked
	close(w.store.early)
	if !eventually(func() bool { return !w.machine.running() }) {
		t.Fatal("the pod does not stand still")
	}
	close(w.store.block)
	w.must("capture", <-captured)
	close(slow.letGo)
	_, err := w.machineService().Vote(t.Context(), &machinev1.VoteRequest{Ref: w.ref()})
	w.must("vote", err)
	_, err = w.machineService().Release(t.Context(), &machinev1.ReleaseRequest{Ref: w.ref(),
		Digest: vm.journal.Load().Digest})
	w.must("release", err)
	if got := w.waitFor("web"); got != 3 {
		t.Errorf("web ended with %d", got)
	}
	if end, err := journal.ReadExit(dir); err != nil || end.Status != 3 {
		t.Errorf("its bundle says %+v, %v", end, err)
	}
}
