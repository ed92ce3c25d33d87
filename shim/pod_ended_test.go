package shim

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/shim/journal"
)

// TestEndIsOwedAgain: a Create of a container that had ended is under way while its pod begins to run, and fails for
// that. The next Create of that name tells the end: the program does not run a second time.
func TestEndIsOwedAgain(t *testing.T) {
	w := sleepingPod(t, true)
	w.must("wake", w.armed("web"))
	w.must("create log", w.createMember("log", "alpine"))
	vm, err := w.service.current()
	w.must("find VM", err)
	reached, letGo := w.held("hold")
	create := begun(func() error { return w.createMember("setup", "alpine") })
	<-reached
	loads, goOn := w.held("load state")
	w.must("start log", w.startTask("log"))
	<-loads
	letGo()
	if err := <-create; err == nil || !vm.inState(Starting) {
		t.Errorf("create: %v; the VM is %s", err, vm.state)
	}
	if j := vm.journal.Load(); j.OwedEnd("setup") == nil || len(j.Members) != 2 {
		t.Errorf("the journal has ends %+v, members %+v", j.Ended, j.Members)
	}
	goOn()
	if !eventually(func() bool { return vm.inState(Running) }) {
		t.Fatalf("the VM is %s", vm.state)
	}
	w.must("create again", w.createMember("setup", "alpine"))
	w.must("start", w.startTask("setup"))
	if w.stateOf("setup") != tasktypes.Status_STOPPED {
		t.Fatal("the program of a container runs that had ended")
	}
	if got := w.waitFor("setup"); got != 3 {
		t.Errorf("a container that had ended with 3 ended with %d", got)
	}
}

// TestStartOfAKilledContainer: a container of a pod that sleeps is killed before its Start, and its end is being
// written down. It ran there, or had ended. The Start fails: the pod does not wake with a process that has no task.
func TestStartOfAKilledContainer(t *testing.T) {
	for _, id := range []string{"web", "setup"} {
		w := sleepingPod(t, true)
		w.must("wake", w.armed("log"))
		r := w.memberRequest(id, "alpine")
		_, err := w.service.Create(ctxNS(t), r)
		w.must("create "+id, err)
		vm, err := w.service.current()
		w.must("find VM", err)
		slow := durable.Unfinished(filepath.Join(r.GetBundle(), "godwit-end"))
		w.must("make a slow disk", unix.Mkfifo(slow, 0o600))
		kill := begun(func() error { return w.killTask(id) })
		vm.mu.Lock()
		killed := vm.tasks[id].member
		vm.mu.Unlock()
		if !eventually(func() bool { vm.mu.Lock(); defer vm.mu.Unlock(); return killed.ending != nil }) {
			t.Fatal("it is not killed")
		}
		start := begun(func() error { return w.startTask(id) })
		if !eventually(func() bool { return len(start) > 0 || !vm.inState(Created) }) || !vm.inState(Created) {
			t.Errorf("a start of %s, which was killed, is not refused; the VM is %s", id, vm.state)
		}
		disk, err := os.Open(slow)
		w.must("go on", err)
		w.must("kill", <-kill)
		disk.Close()
		if err := errgrpc.ToNative(<-start); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("start of %s, which was killed: %v", id, err)
		}
		if got := w.waitFor(id); got != 143 {
			t.Errorf("%s ended with %d", id, got)
		}
	}
}

// lefts is a pod that wakes, whose guest has a container that had ended and that no client wants.
func lefts(t *testing.T, silent func(*world)) (*world, *VM) {
	t.Helper()
	w := sleepingPod(t, false)
	w.agent.pod.containers = map[string]*agentv1.AddContainerRequest{"c1": {}, "c2": {}, "c3": {}}
	silent(w)
	w.must("wake", w.armed("web", "log"))
	vm, err := w.service.current()
	w.must("find VM", err)
	if !eventually(func() bool { return vm.inState(Running) && (len(vm.pod.changing) > 0 || isTriedAgain(vm)) }) {
		t.Fatalf("the VM is %s, and nothing of it is removed", vm.state)
	}
	return w, vm
}

// isTriedAgain reports whether something could not be removed at once.
func isTriedAgain(vm *VM) bool {
	rs := vm.pod.removals
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return len(rs.all) > 0
}

// TestHungGuestAfterTheWake: a guest that woke does not remove a container that had ended. Nothing else waits for that
// longer than its caller. It is removed when the guest does so.
func TestHungGuestAfterTheWake(t *testing.T) {
	undoBound = time.Second
	t.Cleanup(func() { undoBound = 30 * time.Second })
	w, vm := lefts(t, func(w *world) { w.agent.hang("remove container") })
	ctx, cancel := context.WithTimeout(ctxNS(t), 50*time.Millisecond)
	defer cancel()
	r := w.memberRequest("new", "alpine")
	create := begun(func() error { _, err := w.service.Create(ctx, r); return err })
	if !eventually(func() bool { return len(create) > 0 }) || <-create == nil {
		t.Fatal("a Create does not end with its caller")
	}
	w.must("create", w.createMember("new", "alpine"))
	if !eventually(func() bool { return isTriedAgain(vm) }) {
		t.Error("what the guest has still is not removed later")
	}
	w.agent.mu.Lock()
	w.agent.pod.hung = nil
	w.agent.mu.Unlock()
	if !eventually(func() bool { return vm.spec().Pod.Member("c1") == nil }) || slices.Contains(w.agent.has(), "c1") {
		t.Errorf("the guest has %q, the Spec %+v", w.agent.has(), vm.spec().Pod.Containers)
	}
}

// TestLeftContainerThatStays: a guest cannot remove a container that had ended. Its pod can still hibernate and move,
// and says that it has ended.
func TestLeftContainerThatStays(t *testing.T) {
	w, vm := lefts(t, func(w *world) { w.agent.pod.stuck = []string{"remove container"} })
	_, err := w.capture()
	w.must("capture", err)
	var said journal.Resume
	w.must("read what it says of the containers", json.Unmarshal(w.store.pushed.Resume, &said))
	w.must("check it", checkResume(&journal.Journal{Resources: journal.Resources{Spec: w.store.pushed.Spec}}, &said))
	if m := said.Member("c1"); m == nil || m.Ended == nil || vm.spec().Pod.Member("c1") == nil {
		t.Errorf("a container that the guest has still is, in the snapshot, %+v", m)
	}
}

// TestNoSnapshotOfALeftContainer: no operation gets a pod that woke while a container that had ended is removed from
// it. Its Spec would have one more than its state.
func TestNoSnapshotOfALeftContainer(t *testing.T) {
	busyBound = 0
	t.Cleanup(func() { busyBound = longestBusy })
	var letGo func()
	w, vm := lefts(t, func(w *world) { _, letGo = w.held("remove container") })
	_, err := w.capture()
	if err := errgrpc.ToNative(err); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("capture: %v", err)
	}
	letGo()
	if !eventually(func() bool { return vm.spec().Pod.Member("c1") == nil && len(vm.pod.changing) == 0 }) {
		t.Error("it is not removed")
	}
	busyBound = longestBusy
	_, err = w.capture()
	w.must("capture", err)
	var said journal.Resume
	w.must("read what it says of the containers", json.Unmarshal(w.store.pushed.Resume, &said))
	w.must("check it", checkResume(&journal.Journal{Resources: journal.Resources{Spec: w.store.pushed.Spec}}, &said))
}
