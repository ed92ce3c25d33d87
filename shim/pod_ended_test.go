package shim

import (
	"os"
	"path/filepath"
	"testing"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
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
