package shim

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/journal"
)

// What CRI does to a pod in the moments of its arrival.

// readyPod is the pod that has come, and waits for the commit.
func (w *world) readyPod(names ...string) *VM {
	w.t.Helper()
	w.must("arm", w.armed(names...))
	vm, err := w.service.current()
	w.must("find VM", err)
	w.connectPod()
	if !w.arrived() {
		w.t.Fatalf("the pod is %s", vm.journal.Load().Phase)
	}
	return vm
}

// TestExecOfAContainerThatEndedOnTheWay: a probe of it is refused while its end is not told yet.
func TestExecOfAContainerThatEndedOnTheWay(t *testing.T) {
	w := movingPod(t, func(source *world) {
		source.agent.exit("c3") <- 7
		source.waitFor("log")
	})
	vm := w.readyPod("setup", "web", "log")
	w.commit()
	w.must("run", vm.owner.start(t.Context())) // nothing has been settled
	r := execRequest("probe")
	r.ID = "log"
	if _, err := w.service.Exec(ctxNS(t), r); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("exec: %v", err)
	}
}

// TestCreateWhileThePodBeginsToRun: CRI makes a container that had ended, and is slow. The pod runs without it.
func TestCreateWhileThePodBeginsToRun(t *testing.T) {
	w := movingPod(t, nil)
	vm := w.readyPod("web", "log")
	ref := w.ref()
	vm.pod.changing.Lock() // in place of a slow disk
	made := make(chan error)
	go func() { made <- w.createMember("setup", "alpine") }()
	if !eventually(func() bool {
		vm.mu.Lock()
		defer vm.mu.Unlock()
		late := vm.tasks["setup"]
		return late != nil && late.init != nil
	}) {
		t.Fatal("the create has not begun")
	}
	w.commit()
	err := vm.pod.runMoved(t.Context(), ref)
	vm.pod.changing.Unlock()
	if late := errgrpc.ToNative(<-made); !errdefs.IsFailedPrecondition(late) {
		t.Errorf("create: %v", late)
	}
	if err != nil || !vm.inState(Running) {
		t.Errorf("run: %v; the VM is %s", err, vm.state)
	}
}

// TestSuccessorLeavesEndedContainers: the shim dies while the pod begins to run. CRI has made a container that had
// ended, of which the guest has none. The successor takes the others up.
func TestSuccessorLeavesEndedContainers(t *testing.T) {
	for n := 1; n < 12; n++ {
		w := movingPod(t, nil)
		vm := w.readyPod("web", "log")
		w.must("create setup", w.createMember("setup", "alpine"))
		w.commit()
		at := w.dies(n, func() { _ = vm.owner.start(t.Context()) })
		if j := vm.journal.Load(); at == "" || j.Phase != journal.Own || !j.Waking {
			continue
		}
		next := w.succeed(vm)
		(&adoption{vm: next}).finishWake(t.Context())
		if !next.inState(Running) {
			t.Errorf("its shim died at %q: the successor's VM is %s, %s", at, next.state, next.journal.Load().Phase)
		}
		return
	}
	t.Error("no death came between the commit and the end of the Start")
}

// TestContainerCameAndWent: a container that came and went since the pod was offered has had an id of the guest. The
// pod does not come: this node would give the id again.
func TestContainerCameAndWent(t *testing.T) {
	w := movingPod(t, func(source *world) {
		source.must("create new", source.createMember("new", "alpine"))
		source.must("start new", source.startTask("new"))
		source.agent.exit("c4") <- 0
		source.waitFor("new")
		source.must("delete new", source.deleteTask("new"))
	})
	w.must("arm", w.armed("web", "log"))
	if err := w.moved(); err == nil {
		w.agent.pod.containers = map[string]*agentv1.AddContainerRequest{}
		w.must("create another", w.createMember("another", "alpine"))
		vm, err := w.service.current()
		w.must("find VM", err)
		t.Errorf("the pod came, and gives ids of the guest twice: %+v", vm.spec().Pod.Containers)
	}
}

// TestGivenUpSandboxStaysGivenUp: a sandbox that waited for a pod was ended. A kubelet makes it anew, for the same
// attempt: it is refused, and the fence of the attempt stays.
func TestGivenUpSandboxStaysGivenUp(t *testing.T) {
	w := movingPod(t, nil)
	w.readyPod("web", "log")
	w.must("kill", w.killTask("web"))
	for _, id := range []string{"web", "log", "vm"} {
		w.waitFor(id)
		w.must("delete "+id, w.deleteTask(id))
	}
	w.restart()
	if err := errgrpc.ToNative(w.createPod()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("the attempt once more: %v", err)
	}
	if j, err := journal.Read(w.cfg.VMDir("ns", "team.web")); err != nil || j.Phase != journal.Fenced ||
		j.Operation != "op1" {
		t.Errorf("the fence is %+v, %v", j, err)
	}
}

// TestVMIsOfTheNewPod: the VM of a pod that woke in another pod object is that one's. A kubelet that makes it anew does
// not wake it by itself.
func TestVMIsOfTheNewPod(t *testing.T) {
	w := sleepingPod(t, true)
	w.cfg.Node = "b"
	w.podNotes["io.kubernetes.cri.sandbox-uid"] = "u2"
	w.must("wake", w.armed("web", "log"))
	vm, err := w.service.current()
	w.must("find VM", err)
	if got := vm.spec().Pod.UID; got != "u2" {
		t.Errorf("the VM is pod %s's, its sandbox is of pod u2", got)
	}
}
