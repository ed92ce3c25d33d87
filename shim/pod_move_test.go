package shim

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
)

// expecting is a daemon that was told of a move after it was asked so many times.
type expecting struct {
	Orders
	*world
	unheard int
	attempt uint32
	asked   func() // nil: nothing happens meanwhile
}

func (e *expecting) Expected(context.Context, *nodev1.VM) (*nodev1.ExpectedResponse, error) {
	if err := e.call("ask for the order"); err != nil {
		return nil, err
	}
	if e.unheard--; e.unheard >= 0 {
		return nil, errdefs.ErrUnavailable
	}
	if e.asked != nil {
		e.asked()
	}
	return &nodev1.ExpectedResponse{Operation: "op1", Attempt: max(1, e.attempt), Stream: e.stream}, nil
}

func (e *expecting) Image(context.Context, string, string) (string, error) { return firstImage, nil }

// movingPod is a pod on its way from node a, whose containers web and log run and whose container setup has ended with
// 3. The function meanwhile is called after it was offered and before it is sent.
func movingPod(t *testing.T, meanwhile func(source *world)) *world {
	t.Helper()
	return movingPodThat(t, nil, meanwhile)
}

// movingPodThat is movingPod, and does something before the pod is offered too.
func movingPodThat(t *testing.T, before, meanwhile func(source *world)) *world {
	t.Helper()
	source := newWorld(t)
	source.podNotes = map[string]string{"godwit.dev/vm": "web"}
	source.runningPod("setup", "web", "log")
	source.agent.exit("c1") <- 3
	source.waitFor("setup")
	source.must("delete setup", source.deleteTask("setup"))
	if before != nil {
		before(source)
	}
	source.open("a", "b")
	o, err := source.offer()
	source.must("offer", err)
	if meanwhile != nil {
		meanwhile(source)
	}
	w := from(t, source)
	w.podNotes = source.podNotes
	w.stream.Resume, w.stream.Spec = o.GetResume(), o.GetSpec()
	w.orders = &expecting{world: w}
	for _, guest := range []string{"c2", "c3", spec.SandboxProcess} {
		w.agent.exit(guest)
	}
	return w
}

func (w *world) runMoved() error {
	_, err := w.machineService().Run(w.t.Context(), &machinev1.RunRequest{Ref: w.ref()})
	return errgrpc.ToNative(err)
}

func (w *world) missing(offered []byte) ([]string, error) {
	in, err := w.machineService().Incoming(w.t.Context(), &machinev1.IncomingRequest{Ref: w.ref(), Spec: offered})
	return in.GetMissing(), errgrpc.ToNative(err)
}

// connectPod is connect, once all containers are armed. One answer says that, and where to connect: the arrival may end
// at any time.
func (w *world) connectPod() {
	w.t.Helper()
	in, err := w.machineService().Incoming(w.t.Context(),
		&machinev1.IncomingRequest{Ref: w.ref(), Spec: w.stream.GetSpec()})
	if err == nil && len(in.GetMissing()) == 0 {
		w.pass(in.GetSocket())
	}
}

// moved is the hand-over of a pod: it comes, is committed, and runs.
func (w *world) moved() error {
	w.connectPod()
	if !w.arrived() {
		return errFake
	}
	ref := w.ref()
	w.commit()
	_, err := w.machineService().Run(w.t.Context(), &machinev1.RunRequest{Ref: ref})
	return errgrpc.ToNative(err)
}

// TestPodArrives: a pod that moves here waits until all its tasks are started, and says for which it waits. It runs
// when the order of the move says so, and not before the commit. A container that had ended is answered at once.
func TestPodArrives(t *testing.T) {
	w := movingPod(t, nil)
	w.orders = &expecting{world: w, unheard: 2}
	w.must("arm", w.armed("setup", "web"))
	if got := w.waitFor("setup"); got != 3 {
		t.Errorf("a container that had ended with 3 ended with %d", got)
	}
	if got, err := w.missing(w.stream.GetSpec()); err != nil || !slices.Equal(got, []string{"log"}) {
		t.Errorf("it waits for %q, %v", got, err)
	}
	if err := w.runMoved(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("run while a container is missing: %v", err)
	}
	w.must("create log", w.createMember("log", "alpine"))
	w.must("start log", w.startTask("log"))
	vm, err := w.service.current()
	w.must("find VM", err)
	w.connectPod()
	if !w.arrived() || !vm.inState(Created) {
		t.Fatalf("the pod is %s, %s", vm.state, vm.journal.Load().Phase)
	}
	ref := w.ref()
	if err := w.runMoved(); !errdefs.IsFailedPrecondition(err) || !vm.inState(Created) || w.machine.running() {
		t.Fatalf("run before the commit: %v, %s", err, vm.state)
	}
	w.commit()
	for range 2 {
		_, err = w.machineService().Run(t.Context(), &machinev1.RunRequest{Ref: ref})
		w.must("run", err)
	}
	for _, id := range []string{"vm", "web", "log"} {
		if got := w.stateOf(id); got != tasktypes.Status_RUNNING || !w.machine.running() {
			t.Errorf("%s is %s", id, got)
		}
	}
	w.agent.exit("c2") <- 5
	if got := w.waitFor("web"); got != 5 || w.stateOf("log") != tasktypes.Status_RUNNING {
		t.Errorf("web ended with %d; log is %s", got, w.stateOf("log"))
	}
}

// TestContainerEndsOnTheWay: a container that ends after the pod was offered is armed where the pod goes. There it is
// told that it runs, and then its end.
func TestContainerEndsOnTheWay(t *testing.T) {
	w := movingPod(t, func(source *world) {
		source.agent.exit("c3") <- 7
		source.waitFor("log")
	})
	w.must("arm", w.armed("setup", "web", "log"))
	if got := w.stateOf("log"); got != tasktypes.Status_RUNNING {
		t.Errorf("log is %s before the pod came", got)
	}
	w.must("move", w.moved())
	if got := w.waitFor("log"); got != 7 || w.stateOf("web") != tasktypes.Status_RUNNING {
		t.Errorf("log ended with %d; web is %s", got, w.stateOf("web"))
	}
	w.must("delete log", w.deleteTask("log"))
}

// TestContainerEndsInTheLastPass: the guest tells the end of a container just before the pause, and CRI has not heard
// of it. The move goes on. The container is told to run where the pod goes, and then its end, each once.
func TestContainerEndsInTheLastPass(t *testing.T) {
	var source *world
	w := movingPod(t, func(s *world) {
		source = s
		s.service.mu.Lock()
		defer s.service.mu.Unlock()
		s.service.tasks["log"].init.pump.End(&agentv1.WaitResponse{ExitStatus: 7, ExitedAtUnixNano: 1})
	})
	w.agent.exit("c3") <- 7
	w.must("arm", w.armed("setup", "web", "log"))
	w.must("move", w.moved())
	if got := w.waitFor("log"); got != 7 || w.stateOf("web") != tasktypes.Status_RUNNING {
		t.Errorf("log ended with %d; web is %s", got, w.stateOf("web"))
	}
	w.must("delete log", w.deleteTask("log"))
	if here, there := w.ends(), source.ends(); here != 2 || there != 1 { // one is setup's
		t.Errorf("its destination told %d ends, its source %d", here, there)
	}
}

// TestContainersChangeOnTheWay: a pod that has got a container since it was offered does not come in place of the one
// that was.
func TestContainersChangeOnTheWay(t *testing.T) {
	var offered []byte
	w := movingPod(t, func(source *world) {
		source.must("create new", source.createMember("new", "alpine"))
		source.must("start new", source.startTask("new"))
		o, err := source.offer()
		source.must("offer again", err)
		offered = o.GetSpec()
	})
	w.must("arm", w.armed("web", "log"))
	if _, err := w.missing(offered); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "new (c4)") {
		t.Errorf("other containers: %v", err)
	}
	w.connectPod() // the source does not ask, and sends
	if w.arrived() {
		t.Error("the pod came with a container that no task has")
	}
	for _, id := range []string{"web", "log", "vm"} {
		w.waitFor(id)
		w.must("delete "+id, w.deleteTask(id))
	}
}

// TestMoveNotHeard: the Create of a pod whose move this node has not heard of is refused, and can be made again.
func TestMoveNotHeard(t *testing.T) {
	w := movingPod(t, nil)
	order := &expecting{world: w, unheard: 1 << 20}
	w.orders = order
	was := expectBound
	expectBound = time.Second
	t.Cleanup(func() { expectBound = was })
	if err := errgrpc.ToNative(w.createPod()); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "op1") {
		t.Errorf("create: %v", err)
	}
	order.unheard = 0
	w.must("arm", w.armed("web", "log"))
	w.must("move", w.moved())
}

// TestPodArrivalFails: whichever call of an arrival fails, nothing of it is left, every task has ended, and the pod has
// not run, unless it was committed.
func TestPodArrivalFails(t *testing.T) {
	for n := 1; ; n++ {
		w := movingPod(t, nil)
		w.arm(n)
		err := w.armed("web", "log")
		if err == nil {
			err = w.moved()
		}
		fired := w.fired()
		w.arm(0)
		if fired == "" {
			w.must("move", err)
			if n < 10 {
				t.Errorf("only %d calls were made", n)
			}
			return
		}
		vm, found := w.service.current()
		if found != nil || vm.inState(Running) { // nothing was made, or what failed is no reason to end it
			continue
		}
		_, _ = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		w.endTasks("after "+fired, "web", "log", "vm")
		w.nothingLeft()
	}
}

// TestPodArrivalGivenUp: the end of one armed task, and the end of the move, end the arrival: the pod runs on where it
// was.
func TestPodArrivalGivenUp(t *testing.T) {
	for name, end := range map[string]func(*world) error{
		"kill": func(w *world) error { return w.killTask("web") },
		"abort": func(w *world) error {
			_, err := w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
			return err
		},
	} {
		w := movingPod(t, nil)
		w.must("arm", w.armed("web", "log"))
		w.must(name, end(w))
		for _, id := range []string{"web", "log", "vm"} {
			if got := w.waitFor(id); got == 0 {
				t.Errorf("%s ended with 0 after %s", id, name)
			}
			if _, err := w.missing(w.stream.GetSpec()); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("after %s the pod is awaited: %v", name, err)
			}
			w.must("delete "+id, w.deleteTask(id))
		}
		if j, err := journal.Read(w.cfg.VMDir("ns", "team.web")); err == nil && j.Phase != journal.Fenced {
			t.Errorf("after %s the journal is %s", name, j.Phase)
		}
	}
}
