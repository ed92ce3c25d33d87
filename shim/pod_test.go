package shim

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	"godwit.dev/godwit/shim/journal"
)

func imageMounts(image string) []*types.Mount { return []*types.Mount{{Type: "bind", Source: image}} }

func (w *world) stateOf(id string) tasktypes.Status {
	w.t.Helper()
	r, err := w.service.State(ctxNS(w.t), &taskapi.StateRequest{ID: id})
	w.must("state of "+id, err)
	return r.GetStatus()
}

func (w *world) waitFor(id string) uint32 {
	w.t.Helper()
	r, err := w.service.Wait(ctxNS(w.t), &taskapi.WaitRequest{ID: id})
	w.must("wait for "+id, err)
	return r.GetExitStatus()
}

// TestPod: the containers of a pod run in one VM, each with a pid of its own. Two of one image have one disk. The end
// of one leaves the others; the end of the sandbox ends all.
func TestPod(t *testing.T) {
	w := newWorld(t).runningPod("web", "log")
	vm, err := w.service.current()
	w.must("find VM", err)
	if got := w.agent.has(); !slices.Equal(got, []string{"c1", "c2"}) {
		t.Errorf("the guest has containers %q", got)
	}
	if got := w.machine.plugged(); len(got) != 1 {
		t.Errorf("two containers of one image have disks %q", got)
	}
	w.must("create other", w.createMember("other", "busybox"))
	if got := w.machine.plugged(); len(got) != 2 {
		t.Errorf("with a second image the VM has disks %q", got)
	}
	pids := map[uint32]bool{}
	for _, id := range []string{"vm", "web", "log", "other"} {
		r, err := w.service.State(ctxNS(t), &taskapi.StateRequest{ID: id})
		w.must("state", err)
		if pids[r.GetPid()] || r.GetPid() == 0 || r.GetID() != id {
			t.Errorf("task %s shows pid %d, and id %s", id, r.GetPid(), r.GetID())
		}
		pids[r.GetPid()] = true
	}
	w.agent.exit("c1") <- 3
	if got := w.waitFor("web"); got != 3 || w.stateOf("log") != tasktypes.Status_RUNNING || !vm.inState(Running) {
		t.Errorf("web ended with %d, log is %s, the VM %s", got, w.stateOf("log"), vm.state)
	}
	w.must("delete web", w.deleteTask("web"))
	if got := w.agent.has(); !slices.Equal(got, []string{"c2", "c3"}) {
		t.Errorf("after web was deleted the guest has containers %q", got)
	}
	if got := len(w.machine.plugged()); got != 2 {
		t.Errorf("a deleted container's disk was unplugged: %d are left", got)
	}
	w.must("create web again", w.createMember("web", "alpine"))
	w.must("start web again", w.startTask("web"))
	if sp := vm.spec(); sp.Pod.Issued != 4 || sp.Pod.Member("c4") == nil || sp.Version != 2 {
		t.Errorf("its container made anew has the wrong guest id: %+v", sp.Pod)
	}
	w.must("kill pod", w.kill("", 9))
	if got := w.waitFor("vm"); got != 137 {
		t.Errorf("the sandbox ended with %d", got)
	}
	for _, id := range []string{"web", "log", "other"} {
		if got := w.waitFor(id); got != 137 {
			t.Errorf("%s ended with %d when its pod did", id, got)
		}
		w.must("delete "+id, w.deleteTask(id))
	}
	w.must("delete pod", w.delete())
	if _, err := os.Stat(vm.dir); !os.IsNotExist(err) {
		t.Errorf("something is left of the VM: %v", err)
	}
	for _, p := range w.processes() {
		if alive, err := p.Alive(); alive || err != nil {
			t.Errorf("process %d is left: %v", p.PID, err)
		}
	}
}

// TestPodOwnerFirst: CRI may delete the sandbox before its containers. What is left of them can be asked for and
// deleted, writes no journal, and the shim ends after the last one.
func TestPodOwnerFirst(t *testing.T) {
	w := newWorld(t).runningPod("web")
	vm, err := w.service.current()
	w.must("find VM", err)
	w.must("kill pod", w.kill("", 9))
	w.waitFor("vm")
	w.must("delete pod", w.delete())
	if _, err := w.service.Shutdown(ctxNS(t), &taskapi.ShutdownRequest{ID: "vm"}); err != nil {
		t.Fatal(err)
	}
	if got := w.stateOf("web"); got != tasktypes.Status_STOPPED {
		t.Errorf("web is %s", got)
	}
	select {
	case <-w.service.shutdown.Done():
		t.Error("the shim ended while it had a task")
	default:
	}
	w.must("delete web", w.deleteTask("web"))
	if _, err := os.Stat(journal.File(vm.dir)); !os.IsNotExist(err) {
		t.Errorf("a journal was written after the VM was freed: %v", err)
	}
	select {
	case <-w.service.shutdown.Done():
	case <-time.After(time.Minute):
		t.Error("the shim stays without a task")
	}
}

// TestCreateMemberFailures: a container whose Create fails at any call leaves nothing in guest and journal, the pod
// runs on, and the same Create succeeds afterwards.
func TestCreateMemberFailures(t *testing.T) {
	for n := 1; ; n++ {
		w := newWorld(t).runningPod()
		w.arm(n)
		err := w.createMember("web", "alpine")
		fired := w.fired()
		w.arm(0)
		if fired == "" {
			w.must("create", err)
			if n < 5 {
				t.Errorf("only %d calls were made", n)
			}
			return
		}
		vm, lost := w.service.current()
		w.must("find VM", lost)
		if err == nil {
			t.Errorf("%s failed, and Create did not", fired)
		}
		if sp := vm.spec(); !vm.inState(Running) || len(sp.Pod.Containers) != 0 || len(vm.journal.Load().Members) != 0 ||
			len(w.agent.has()) != 0 {
			t.Errorf("%s failed: the VM is %s and has %+v, the guest %q", fired, vm.state, sp.Pod, w.agent.has())
		}
		if sp := vm.spec(); len(sp.Disks)-1 != len(w.machine.plugged()) {
			t.Errorf("%s failed: the Spec has %d disks, the VMM %d", fired, len(sp.Disks), len(w.machine.plugged()))
		}
		w.must("create again after "+fired, w.createMember("web", "alpine"))
		w.must("start after "+fired, w.startTask("web"))
	}
}

// TestSeventeenImages: a pod has 16 images at a time. One that no container has any more makes room, once the guest has
// let go of it.
func TestSeventeenImages(t *testing.T) {
	w := newWorld(t).runningPod()
	names := []string{}
	for i := range 16 {
		names = append(names, string(rune('a'+i)))
		w.must("create", w.createMember(names[i], "image-"+names[i]))
	}
	if err := errgrpc.ToNative(w.createMember("q", "image-q")); !errdefs.IsResourceExhausted(err) {
		t.Errorf("the 17th image: %v", err)
	}
	w.must("delete", w.deleteTask("c"))
	w.machine.mu.Lock()
	w.machine.hot.stuck = true
	w.machine.mu.Unlock()
	if err := w.createMember("q", "image-q"); err == nil {
		t.Error("a slot whose disk the guest still has was given away")
	}
	w.machine.mu.Lock()
	w.machine.hot.stuck = false
	w.machine.mu.Unlock()
	w.must("create in the slot of an image without a container", w.createMember("q", "image-q"))
	if got := len(w.machine.plugged()); got != 16 {
		t.Errorf("the VM has %d disks", got)
	}
}

// TestPodRefusals: what is not a container of the pod gets no place in it. Calls that mean the VM as a whole are
// refused.
func TestPodRefusals(t *testing.T) {
	w := newWorld(t).runningPod("web")
	if err := errgrpc.ToNative(w.createMember("web", "alpine")); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second task of one id: %v", err)
	}
	if _, err := w.service.Create(ctxNS(t), w.bundle()); err == nil {
		t.Error("a task that is no container of the pod was made")
	}
	r := w.memberRequest("stranger", "alpine")
	notes := w.notesOf("container")
	notes[criNote+"container-name"], notes[criNote+"sandbox-id"] = "stranger", "another"
	stranger := w.criBundle("stranger", notes)
	stranger.Rootfs = r.Rootfs
	if _, err := w.service.Create(ctxNS(t), stranger); err == nil {
		t.Error("a container of another pod was made")
	}
	if _, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "web"}); err == nil {
		t.Error("a container was paused alone")
	}
	if _, err := w.service.Exec(ctxNS(t), execRequest("e")); err == nil {
		t.Error("an exec in the sandbox was taken")
	}
	if got := w.agent.has(); !slices.Equal(got, []string{"c1"}) {
		t.Errorf("the guest has containers %q", got)
	}
}

// TestPodStats: the sandbox's figures are what the VM costs the host, and a container's are the guest's.
func TestPodStats(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"memory.current": "700000000\n", "memory.max": "max\n",
		"memory.stat": "anon 200\nfile 699999000\ninactive_file 60\n", "cpu.stat": "usage_usec 123000000\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.runningPod("web")
	vm, err := w.service.current()
	w.must("find VM", err)
	w.must("note cgroup", vm.write(func(j *journal.Journal) { j.Private = []string{dir} }))
	stats := func(id string) (uint64, uint64, uint64) {
		t.Helper()
		r, err := w.service.Stats(ctxNS(t), &taskapi.StatsRequest{ID: id})
		w.must("stats of "+id, err)
		any, err := typeurl.UnmarshalAny(r.GetStats())
		w.must("decode stats of "+id, err)
		switch m := any.(type) {
		case *v1.Metrics:
			return m.Memory.Usage.Usage, m.CPU.Usage.Total, m.Memory.Usage.Limit
		case *v2.Metrics:
			return m.Memory.Usage, m.CPU.UsageUsec * 1000, m.Memory.UsageLimit
		}
		t.Fatalf("stats of %s are %T", id, any)
		return 0, 0, 0
	}
	if used, spent, most := stats("vm"); used != 700000000 || spent != 123000000000 || most < used {
		t.Errorf("the pod has %d bytes of %d, and has spent %d ns", used, most, spent)
	}
	if used, spent, _ := stats("web"); used != 42 || spent != 0 {
		t.Errorf("its container has %d bytes, and has spent %d ns", used, spent)
	}
}
