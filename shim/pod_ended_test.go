package shim

import (
	"testing"

	tasktypes "github.com/containerd/containerd/api/types/task"
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
