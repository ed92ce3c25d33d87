package shim

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
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

// TestCallerOfRunGoesAway: the caller of Run gives up while the pod begins to run. The pod runs all the same, and the
// next call hears so.
func TestCallerOfRunGoesAway(t *testing.T) {
	w := movingPod(t, nil)
	vm := w.readyPod("web", "log")
	ref := w.ref()
	w.commit()
	reached, letGo := w.held("get") // of the record, which has the commit
	ctx, leave := context.WithCancel(t.Context())
	ran := begun(func() error { return vm.pod.runMoved(ctx, ref) })
	<-reached
	leave()
	again := begun(func() error { return vm.pod.runMoved(t.Context(), ref) })
	letGo()
	if err := <-ran; err != nil && !errdefs.IsUnavailable(err) {
		t.Errorf("the call that was given up: %v", err)
	}
	w.must("run again", <-again)
	if !vm.inState(Running) || vm.journal.Load().Phase != journal.Own {
		t.Errorf("the VM is %s, %s", vm.state, vm.journal.Load().Phase)
	}
}

// TestProbeOutlastsTheBound: an exec of a pod runs for longer than a Send waits. Nothing is sent, and the answer says
// for what the move is to wait. Once the exec has ended, the same attempt is sent. A caller that knows of no wait
// gets an error, as before.
func TestProbeOutlastsTheBound(t *testing.T) {
	busyBound = 50 * time.Millisecond
	t.Cleanup(func() { busyBound = longestBusy })
	w := newWorld(t)
	w.podNotes = map[string]string{"godwit.dev/vm": "web"}
	w.runningPod("web")
	w.open("a", "b")
	probe := execRequest("probe")
	probe.ID = "web"
	_, err := w.service.Exec(ctxNS(t), probe)
	w.must("exec", err)
	_, err = w.service.Start(ctxNS(t), &taskapi.StartRequest{ID: "web", ExecID: "probe"})
	w.must("start exec", err)
	if o, err := w.offer(); err != nil || !strings.Contains(o.GetWaits(), "probe") || len(o.GetObstacles()) > 0 {
		t.Errorf("offer: %v, %v", o, err)
	}
	if _, err := w.send(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("send, of a caller that knows of no wait: %v", err)
	}
	send := func() (*machinev1.SendResponse, error) {
		return w.machineService().Send(t.Context(), &machinev1.SendRequest{Ref: w.ref(), Address: "b:1", Channel: "c",
			Certificate: []byte("d"), Waits: true})
	}
	if r, err := send(); err != nil || !strings.Contains(r.GetWaits(), "probe") || r.GetDigest() != "" {
		t.Errorf("send: %v, %v", r, err)
	}
	_, err = w.service.Kill(ctxNS(t), &taskapi.KillRequest{ID: "web", ExecID: "probe", Signal: 9})
	w.must("end exec", err)
	_, err = w.service.Wait(ctxNS(t), &taskapi.WaitRequest{ID: "web", ExecID: "probe"})
	w.must("wait", err)
	if r, err := send(); err != nil || r.GetWaits() != "" || r.GetDigest() == "" {
		t.Errorf("send after the probe: %v, %v", r, err)
	}
}

// TestStopDuringAMove: StopPodSandbox comes to the source while the pod is sent. It is refused by the operation's name,
// and nothing of the pod has ended. The move goes on.
func TestStopDuringAMove(t *testing.T) {
	source := newWorld(t)
	source.podNotes = map[string]string{"godwit.dev/vm": "web"}
	source.runningPod("web")
	source.open("a", "b")
	source.at("send pages", func() error {
		for _, id := range []string{"web", "vm"} {
			err := errgrpc.ToNative(source.killTask(id))
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "operation op1 holds VM team.web") {
				t.Errorf("kill %s: %v", id, err)
			}
		}
		return nil
	})
	_, err := source.send()
	source.must("send", err)
	if n := source.ends(); n != 0 {
		t.Errorf("containerd was told of %d ends", n)
	}
}

// TestMoveEndsWhileItIsAwaited: a Create of CRI waits for an order. When the order comes, the record that was read
// before is of the past: what it says now counts.
func TestMoveEndsWhileItIsAwaited(t *testing.T) {
	w := movingPod(t, nil)
	w.orders = &expecting{world: w, unheard: 1, asked: func() {
		w.records.set(func(r *nodev1.Record) { r.Operation.Phase = nodev1.Phase_PHASE_ABORTING })
	}}
	err := errgrpc.ToNative(w.createPod())
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "op1") {
		t.Errorf("create for a move that has ended: %v", err)
	}
	w.nothingLeft()

	w = movingPod(t, nil)
	w.orders = &expecting{world: w, attempt: 2, asked: func() {
		w.records.set(func(r *nodev1.Record) { r.Operation.Attempt = 2 })
	}}
	w.must("create for the next attempt", w.createPod())
}

// TestCreateWhileThePodBeginsToRun: CRI makes a container that had ended, and is slow. The pod runs without it.
func TestCreateWhileThePodBeginsToRun(t *testing.T) {
	w := movingPod(t, nil)
	vm := w.readyPod("web", "log")
	ref := w.ref()
	w.must("wait", vm.pod.changing.Take(t.Context())) // in place of a slow disk
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
	vm.pod.changing.Give()
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

// TestSuccessorSettles: the shim dies while the pod begins to run, of which a container has ended on the way. The
// successor removes it from the guest, and keeps its end for the pod's next move.
func TestSuccessorSettles(t *testing.T) {
	w := movingPod(t, func(source *world) {
		source.agent.exit("c3") <- 7
		source.waitFor("log")
	})
	w.agent.pod.containers = map[string]*agentv1.AddContainerRequest{"c2": {}, "c3": {}}
	vm := w.readyPod("web", "log")
	w.commit()
	w.at("restored", func() error { runtime.Goexit(); return nil })
	w.dies(0, func() { _ = vm.owner.start(t.Context()) })
	w.at("restored", nil)
	if j := vm.journal.Load(); j.Phase != journal.Own || !j.Waking {
		t.Fatalf("the shim that died has left %s, waking: %t", j.Phase, j.Waking)
	}
	next := w.succeed(vm)
	(&adoption{vm: next}).finishWake(t.Context())
	if got := w.agent.has(); !next.inState(Running) || !slices.Equal(got, []string{"c2"}) {
		t.Errorf("the successor's VM is %s, and its guest has %q", next.state, got)
	}
	j := next.journal.Load()
	if end := j.EndOf("log"); end == nil || end.Status != 7 || j.Spec.Pod.Member("c3") != nil {
		t.Errorf("of the container that ended with 7 is known: %+v, %+v", end, j.Spec.Pod.Containers)
	}
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

// TestContainerRemovedOnTheWay: CRI removes a container at the source that has ended since the pod was offered. The pod
// comes, and the container ends where it goes as it did. One that had ended before the offer needs no task there.
func TestContainerRemovedOnTheWay(t *testing.T) {
	for _, before := range []bool{false, true} {
		var offered []byte
		remove := func(source *world) {
			source.must("delete log", source.deleteTask("log"))
			o, err := source.offer()
			source.must("offer again", err)
			offered = o.GetSpec()
		}
		w := movingPodThat(t, func(source *world) {
			if before {
				source.endMember("log", "c3", 7)
			}
		}, func(source *world) {
			if !before {
				source.endMember("log", "c3", 7)
			}
			remove(source)
		})
		w.agent.pod.containers = map[string]*agentv1.AddContainerRequest{"c2": {}}
		made := []string{"web"}
		if !before {
			made = append(made, "log")
		}
		w.must("arm", w.armed(made...))
		if missing, err := w.missing(offered); err != nil || len(missing) > 0 {
			t.Errorf("it waits for %q, %v", missing, err)
		}
		w.must("move", w.moved())
		vm, err := w.service.current()
		w.must("find VM", err)
		if !before {
			if got := w.waitFor("log"); got != 7 {
				t.Errorf("log ended with %d", got)
			}
			w.must("delete log", w.deleteTask("log"))
		}
		left := func() bool { return vm.spec().Pod.Member("c3") == nil }
		if got := vm.journal.Load().EndOf("log"); !eventually(left) || got == nil || got.Status != 7 {
			t.Errorf("ended before: %t; of the container is known %+v, %+v", before, got, vm.spec().Pod.Containers)
		}
		if got := w.stateOf("web"); got != tasktypes.Status_RUNNING {
			t.Errorf("web is %s", got)
		}
	}
}

// endMember has a container end by itself.
func (w *world) endMember(id, guest string, status uint32) {
	w.agent.exit(guest) <- status
	w.waitFor(id)
}

// TestContainerThatNeverRanIsRemoved: nothing says how such a container has ended. The pod does not come, and what was
// sent is not damaged.
func TestContainerThatNeverRanIsRemoved(t *testing.T) {
	pod := &spec.Pod{Issued: 2, Containers: []spec.Member{{Guest: "c1", Name: "one"}, {Guest: "c2", Name: "two"}}}
	j := &journal.Journal{Resources: journal.Resources{Spec: &spec.Spec{Pod: pod}}}
	r := &journal.Resume{Issued: 2, Members: []journal.ResumedMember{{Guest: "c1"}}}
	err := (&arrival{announced: pod}).checkArrived(j, r)
	if !errdefs.IsFailedPrecondition(err) || errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "two") {
		t.Errorf("a pod without a container that was offered: %v", err)
	}
}

// TestRemovalWhileHeld: CRI removes a container that has ended while the pod is sent, or goes to sleep. That is refused
// by the operation's name. The container is removed once the operation is called off, and the pod runs on.
func TestRemovalWhileHeld(t *testing.T) {
	for operation, points := range map[string][]string{
		"move":      {"send pages", "pause", "save state"},
		"hibernate": {"push pages", "pause", "save state"},
	} {
		w := newWorld(t)
		w.podNotes = map[string]string{"godwit.dev/vm": "web"}
		w.runningPod("web", "log")
		w.endMember("log", "c2", 7)
		w.open("a", "b")
		met := map[string]bool{}
		for _, point := range points {
			w.at(point, func() error {
				met[point] = true
				err := errgrpc.ToNative(w.deleteTask("log"))
				if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "operation op1 holds VM team.web") {
					t.Errorf("delete at %q of a %s: %v", point, operation, err)
				}
				return nil
			})
		}
		hold := map[string]func() error{
			"move":      func() error { _, err := w.send(); return err },
			"hibernate": func() error { _, err := w.capture(); return err },
		}[operation]
		w.must(operation, hold())
		if len(met) != len(points) {
			t.Errorf("a %s came by %v", operation, met)
		}
		_, err := w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		w.must("abort", err)
		w.must("delete log", w.deleteTask("log"))
		if got := w.stateOf("web"); got != tasktypes.Status_RUNNING || !w.machine.running() {
			t.Errorf("after a %s web is %s", operation, got)
		}
	}
}
