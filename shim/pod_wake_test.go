package shim

import (
	"errors"
	"slices"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/journal"
)

// sleepingPod is a pod with a name for its VM, whose containers web and log run and whose container setup has ended
// with 3. It sleeps, and CRI has deleted its tasks.
func sleepingPod(t *testing.T, deleted bool) *world { return asleep(newWorld(t), deleted) }

func asleep(w *world, deleted bool) *world {
	t := w.t
	t.Helper()
	w.podNotes = map[string]string{"godwit.dev/vm": "web"}
	w.runningPod("setup", "web", "log")
	w.agent.exit("c1") <- 3
	w.waitFor("setup")
	if deleted {
		w.must("delete setup", w.deleteTask("setup"))
	}
	r, err := w.capture()
	w.must("capture", err)
	_, err = w.machineService().Vote(t.Context(), &machinev1.VoteRequest{Ref: w.ref()})
	w.must("vote", err)
	ref := w.ref()
	w.records.sleep(r.GetDigest())
	_, err = w.machineService().Release(t.Context(), &machinev1.ReleaseRequest{Ref: ref, Digest: r.GetDigest()})
	w.must("release", err)
	for id, want := range map[string]uint32{"vm": 0, "setup": 3, "web": 0, "log": 0} {
		if deleted && id == "setup" {
			continue
		}
		if got := w.waitFor(id); got != want {
			t.Errorf("%s ended with %d when the pod had left, not %d", id, got, want)
		}
	}
	if !deleted {
		w.must("delete setup", w.deleteTask("setup"))
	}
	for _, id := range []string{"web", "log", "vm"} {
		w.must("delete "+id, w.deleteTask(id))
	}
	w.nothingLeft()
	w.restart()
	return w
}

func (w *world) killTask(id string) error {
	_, err := w.service.Kill(ctxNS(w.t), &taskapi.KillRequest{ID: id, Signal: 15})
	return err
}

// awaited are the containers for which the pod says that it waits.
func (w *world) awaited() []string {
	r, err := w.machineService().Query(w.t.Context(), &machinev1.QueryRequest{})
	w.must("query", err)
	return r.GetMissing()
}

// endTasks kills and deletes those of these tasks that are there.
func (w *world) endTasks(when string, ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		if _, err := w.service.task(id); err == nil {
			_ = w.killTask(id)
			w.waitFor(id)
			w.must("delete "+id+" "+when, w.deleteTask(id))
		}
	}
}

// armed makes a sandbox and the containers of that names for the pod that sleeps, and starts them.
func (w *world) armed(containers ...string) error {
	if err := w.createPod(); err != nil {
		return err
	}
	if err := w.start(); err != nil {
		return err
	}
	for _, id := range containers {
		if err := w.createMember(id, "alpine"); err != nil {
			return err
		}
		if err := w.startTask(id); err != nil {
			return err
		}
	}
	return nil
}

// TestPodWakes: a pod that slept runs again when all its tasks are started, with the guest ids that it had. A container
// that had ended is answered at once. Until all are started nothing runs, and tasks say that they run.
func TestPodWakes(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		testPodWakes(t, deleted)
	}
}

func testPodWakes(t *testing.T, deleted bool) {
	w := sleepingPod(t, deleted)
	w.must("wake", w.armed("setup", "web"))
	if got := w.waitFor("setup"); got != 3 {
		t.Errorf("a container that had ended with 3 ended with %d", got)
	}
	vm, err := w.service.current()
	w.must("find VM", err)
	if vm.id != "team.web" || !vm.inState(Created) {
		t.Errorf("VM %s is %s before all its tasks are started", vm.id, vm.state)
	}
	for _, id := range []string{"vm", "web"} {
		if got := w.stateOf(id); got != tasktypes.Status_RUNNING {
			t.Errorf("%s is %s while it is armed", id, got)
		}
	}
	if got := w.awaited(); !slices.Equal(got, []string{"log"}) {
		t.Errorf("it says that it waits for %q", got)
	}
	r := execRequest("probe")
	r.ID = "web"
	if _, err := w.service.Exec(ctxNS(t), r); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("an exec in a container that is armed: %v", err)
	}
	w.must("create log", w.createMember("log", "alpine"))
	w.must("start log", w.startTask("log"))
	if !eventually(func() bool { return vm.inState(Running) }) {
		t.Fatalf("the VM is %s after all its tasks were started", vm.state)
	}
	if got := w.awaited(); len(got) > 0 {
		t.Errorf("it runs, and says that it waits for %q", got)
	}
	var guests []string
	for _, m := range vm.journal.Load().Members {
		guests = append(guests, m.ID+" "+m.Guest)
	}
	if want := []string{"web c2", "log c3"}; !slices.Equal(guests[1:], want) {
		t.Errorf("its tasks have containers %q, not %q", guests, want)
	}
	w.agent.exit("c2") <- 5
	if got := w.waitFor("web"); got != 5 || w.stateOf("log") != tasktypes.Status_RUNNING {
		t.Errorf("web ended with %d; log is %s", got, w.stateOf("log"))
	}
	w.must("create new", w.createMember("new", "alpine"))
	all := vm.spec().Pod.Containers
	if m := all[len(all)-1]; m.Name != "new" || slices.Contains([]string{"c1", "c2", "c3"}, m.Guest) {
		t.Errorf("a container made after the wake: %+v", all)
	}
}

// TestEndedContainerComesLate: CRI makes a container that had ended once the pod runs again. Its first task ends as the
// container had, and its program does not run. The next one of that name is a new container.
func TestEndedContainerComesLate(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		testComesLate(sleepingPod(t, deleted), func(w *world) error { return w.armed("web", "log") })
	}
	testComesLate(movingPod(t, nil), func(w *world) error { return errors.Join(w.armed("web", "log"), w.moved()) })
}

func testComesLate(w *world, comes func(*world) error) {
	t := w.t
	t.Helper()
	w.agent.pod.containers = map[string]*agentv1.AddContainerRequest{"c2": {}, "c3": {}}
	w.must("come", comes(w))
	vm, err := w.service.current()
	w.must("find VM", err)
	if !eventually(func() bool { return vm.inState(Running) && !slices.Contains(w.agent.has(), "c1") }) {
		t.Fatalf("the VM is %s, its guest has %q", vm.state, w.agent.has())
	}
	w.must("wait", vm.pod.changing.Take(t.Context())) // what had ended is removed
	has := w.agent.has()
	vm.pod.changing.Give()
	late := func() uint32 {
		w.must("create setup", w.createMember("setup", "alpine"))
		w.must("start setup", w.startTask("setup"))
		if w.stateOf("setup") != tasktypes.Status_STOPPED {
			t.Fatal("the program of a container runs that had ended")
		}
		return w.waitFor("setup")
	}
	w.must("create setup", w.createMember("setup", "alpine")) // and it is removed before its Start
	w.must("delete setup", w.deleteTask("setup"))
	if got := late(); got != 3 || !slices.Equal(w.agent.has(), has) {
		t.Errorf("a container that had ended with 3 ended with %d; the guest has %q, had %q", got, w.agent.has(), has)
	}
	var r journal.Resume
	if j := vm.pod.resumed(&r, standing); j.EndOf("setup") == nil {
		t.Error("the pod sleeps again without its end")
	}
	w.must("delete setup", w.deleteTask("setup"))
	w.must("create setup", w.createMember("setup", "alpine"))
	w.must("start setup", w.startTask("setup"))
	if got := w.stateOf("setup"); got != tasktypes.Status_RUNNING || len(w.agent.has()) != len(has)+1 {
		t.Errorf("the next container of that name is %s; the guest has %q", got, w.agent.has())
	}
}

// TestPodWakeFails: whichever call of a wake fails, nothing of it is left, every task has ended, and the snapshot owns
// the VM unless the VM ran. The same calls succeed afterwards.
func TestPodWakeFails(t *testing.T) {
	for n := 1; ; n++ {
		w := sleepingPod(t, true)
		w.arm(n)
		err := w.armed("web", "log")
		vm, found := w.service.current()
		if found == nil && err == nil {
			eventually(func() bool { return vm.inState(Running) || vm.inState(Stopped) })
		}
		fired := w.fired()
		w.arm(0)
		if fired == "" {
			w.must("wake", err)
			if n < 10 {
				t.Errorf("only %d calls were made", n)
			}
			return
		}
		if found == nil && vm.inState(Running) { // what failed came after, or is no reason to end it
			continue
		}
		if found == nil { // the sandbox was made
			w.endTasks("after "+fired, "web", "log", "vm")
			w.nothingLeft()
		}
		if w.records.rec.GetOwner().GetDigest() == "" && w.records.phase != nodev1.Phase_PHASE_LOST_AT_DEST {
			t.Errorf("after %s failed (%v) the record has owner %v", fired, err, w.records.rec.GetOwner())
		}
	}
}

// TestPodBindsRefused: a container that is not what the snapshot has is refused by name, and the wake goes on with the
// right one.
func TestPodBindsRefused(t *testing.T) {
	w := sleepingPod(t, true)
	w.must("wake", w.armed("web"))
	refused := func(what string, err error, names string) {
		t.Helper()
		if err = errgrpc.ToNative(err); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("one too many", w.createMember("other", "alpine"), "other")
	twice := w.edit(w.memberRequest("again", "alpine"), func(s *specs.Spec) {
		s.Annotations[criNote+"container-name"] = "web"
	})
	_, err := w.service.Create(ctxNS(t), twice)
	refused("one twice", err, "web")
	image := w.edit(w.memberRequest("log", "alpine"), func(s *specs.Spec) {
		s.Annotations[criNote+"image-name"] = "another"
	})
	_, err = w.service.Create(ctxNS(t), image)
	refused("another image", err, "image")
	tty := w.edit(w.memberRequest("log", "alpine"), func(s *specs.Spec) { s.Process.Terminal = true })
	tty.Terminal = true
	_, err = w.service.Create(ctxNS(t), tty)
	refused("with a terminal", err, "terminal")
	w.must("create log", w.createMember("log", "alpine"))
	w.must("start log", w.startTask("log"))
	vm, err := w.service.current()
	w.must("find VM", err)
	if !eventually(func() bool { return vm.inState(Running) }) {
		t.Errorf("the VM is %s", vm.state)
	}
}

// TestPodWakeGivenUp: the end of one armed task is the end of the wake. Nothing has run, and the snapshot owns the VM.
func TestPodWakeGivenUp(t *testing.T) {
	for _, id := range []string{"web", "vm"} {
		w := sleepingPod(t, true)
		w.must("wake", w.armed("web"))
		w.must("kill "+id, w.killTask(id))
		for _, ended := range []string{"web", "vm"} {
			if got := w.waitFor(ended); got == 0 {
				t.Errorf("%s ended with %d after %s was killed", ended, got, id)
			}
			w.must("delete "+ended, w.deleteTask(ended))
		}
		if got := w.records.rec; got.GetOwner().GetDigest() == "" || got.GetOperation() != nil {
			t.Errorf("after a wake that was given up the VM has owner %v and operation %v", got.GetOwner(), got.GetOperation())
		}
		w.restart()
		w.must("wake again", w.armed("web", "log"))
	}
}

// TestPodWithoutNameStays: a pod whose next sandbox could not find its VM is refused, and runs on.
func TestPodWithoutNameStays(t *testing.T) {
	w := newWorld(t).runningPod("web")
	_, err := w.capture()
	if err = errgrpc.ToNative(err); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "godwit.dev/vm") {
		t.Errorf("hibernate of a pod without a name: %v", err)
	}
	if _, err := w.offer(); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "godwit.dev/vm") {
		t.Errorf("a live move of a pod: %v", err)
	}
	if got := w.stateOf("web"); got != tasktypes.Status_RUNNING {
		t.Errorf("web is %s", got)
	}
}

// TestSamePodStays: the sandbox that a kubelet makes anew, after the pod was sent to sleep, does not wake it here.
func TestSamePodStays(t *testing.T) {
	w := sleepingPod(t, true)
	w.records.rec.Home = "a"
	err := errgrpc.ToNative(w.createPod())
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "godwit -n ns wake team.web") {
		t.Errorf("the same pod on the same node: %v", err)
	}
	w.nothingLeft()
	w.restart()
	w.records.rec.Home = "b"
	w.must("the same pod on another node", w.createPod())
}

// TestSuccessorKnowsMembers: the shim of a pod dies while an operation holds it. Its successor knows the containers,
// and sends them to sleep.
func TestSuccessorKnowsMembers(t *testing.T) {
	w := newWorld(t)
	w.podNotes = map[string]string{"godwit.dev/vm": "web"}
	w.runningPod("web", "log")
	old, err := w.service.current()
	w.must("find VM", err)
	_, err = w.capture()
	w.must("capture", err)
	vm := w.succeed(old)
	if got := len(vm.allTasks()); got != 3 {
		t.Errorf("a successor knows %d tasks", got)
	}
	w.aborted++
	w.must("abort", vm.op.capture.abort(Captured))
	var r journal.Resume
	if vm.pod.resumed(&r, standing); len(r.Members) != 2 || r.EndOf("c1") != nil || r.EndOf("c2") != nil {
		t.Errorf("a successor says of the containers %+v", r.Members)
	}
	if vm.journal.Load().Phase != journal.Own {
		t.Errorf("the VM is %s", vm.journal.Load().Phase)
	}
}

// TestPodWakesByOrder: the Create of a pod takes up the wake that was ordered to this node. The shim commits it, and
// leaves it to the engine to close.
func TestPodWakesByOrder(t *testing.T) {
	w := sleepingPod(t, true)
	w.records.rec.Home = "a"
	w.ordered()
	w.records.rec.Operation.Managed = true
	w.must("wake", w.armed("web", "log"))
	vm, err := w.service.current()
	w.must("find VM", err)
	if !eventually(func() bool { return vm.inState(Running) }) {
		t.Fatalf("the VM is %s", vm.state)
	}
	j, op := vm.journal.Load(), w.records.rec.GetOperation()
	if j.Operation != "op2" || j.Self || op.GetId() != "op2" || op.GetPhase() != nodev1.Phase_PHASE_COMMITTED {
		t.Errorf("the journal has operation %q (its own: %v), the record %v", j.Operation, j.Self, op)
	}
}
