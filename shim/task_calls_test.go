package shim

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"
)

func (w *world) kill(exec string, signal uint32) error {
	_, err := w.service.Kill(ctxNS(w.t), &taskapi.KillRequest{ID: "vm", ExecID: exec, Signal: signal})
	return errgrpc.ToNative(err)
}

func (w *world) exec(id string) {
	w.t.Helper()
	_, err := w.service.Exec(ctxNS(w.t), execRequest(id))
	w.must("exec", err)
	_, err = w.service.Start(ctxNS(w.t), &taskapi.StartRequest{ID: "vm", ExecID: id})
	w.must("start exec", err)
}

func (w *world) wait(exec string) uint32 {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(ctxNS(w.t), time.Minute)
	defer cancel()
	r, err := w.service.Wait(ctx, &taskapi.WaitRequest{ID: "vm", ExecID: exec})
	w.must("wait", err)
	return r.GetExitStatus()
}

func (w *world) status(exec string) tasktypes.Status {
	w.t.Helper()
	r, err := w.service.State(ctxNS(w.t), &taskapi.StateRequest{ID: "vm", ExecID: exec})
	w.must("state", err)
	return r.GetStatus()
}

// A created task ends with the signals that end a process which has no handler yet, and
// with no other.
func TestKillOfACreatedTask(t *testing.T) {
	for signal, want := range map[uint32]tasktypes.Status{
		0: tasktypes.Status_CREATED, 17: tasktypes.Status_CREATED, 18: tasktypes.Status_CREATED, 28: tasktypes.Status_CREATED,
		1: tasktypes.Status_STOPPED, 9: tasktypes.Status_STOPPED, 15: tasktypes.Status_STOPPED, 34: tasktypes.Status_STOPPED,
	} {
		w := newWorld(t)
		w.must("create", w.create())
		w.must("kill", w.kill("", signal))
		if got := w.status(""); got != want {
			t.Errorf("after signal %d the task is %s, want %s", signal, got, want)
		}
		if want == tasktypes.Status_STOPPED && w.wait("") != 128+signal {
			t.Errorf("signal %d: exit status %d", signal, w.wait(""))
		}
	}
	if err := newWorld(t).running().kill("", 65); !errdefs.IsInvalidArgument(err) {
		t.Errorf("signal 65 = %v", err)
	}
}

// A signal that comes during a Start reaches the process when it runs, as with runc,
// where Start and Kill exclude each other.
func TestKillWaitsForTheStart(t *testing.T) {
	w := newWorld(t)
	w.must("create", w.create())
	killed := make(chan error, 1)
	w.at("setup", func() error {
		go func() { killed <- w.kill("", 15) }()
		return nil
	})
	w.must("start", w.start())
	w.must("kill of init", <-killed)
	if got := w.wait(""); got != 143 {
		t.Errorf("init ended with %d", got)
	}

	w = newWorld(t).running()
	_, err := w.service.Exec(ctxNS(t), execRequest("e"))
	w.must("exec", err)
	w.at("start process", func() error {
		go func() { killed <- w.kill("e", 9) }()
		return nil
	})
	_, err = w.service.Start(ctxNS(t), &taskapi.StartRequest{ID: "vm", ExecID: "e"})
	w.must("start exec", err)
	w.must("kill of exec", <-killed)
	if got := w.wait("e"); got != 137 {
		t.Errorf("exec ended with %d", got)
	}
}

// Signals and sizes that come during a pause reach the guest after it, each once; SIGKILL
// for init ends the VM at once.
func TestKillOfAPausedTask(t *testing.T) {
	w := newWorld(t).running()
	w.exec("e")
	vm, _ := w.service.current()
	vm.mu.Lock()
	vm.owner.init.stdio.Terminal = true
	vm.mu.Unlock()
	pause := func() {
		t.Helper()
		_, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
		w.must("pause", err)
		w.agent.heard()
	}
	pause()
	for _, id := range []string{"", "e"} {
		if got := w.status(id); got != tasktypes.Status_PAUSED {
			t.Errorf("process %q is %s", id, got)
		}
	}
	for _, k := range []struct {
		exec   string
		signal uint32
	}{{"", 28}, {"e", 9}, {"", 28}} {
		w.must("kill", w.kill(k.exec, k.signal))
	}
	_, err := w.service.ResizePty(ctxNS(t), &taskapi.ResizePtyRequest{ID: "vm", Width: 80, Height: 24})
	w.must("resize", err)
	if said := w.agent.heard(); len(said) > 0 {
		t.Errorf("a paused guest was asked: %q", said)
	}
	_, err = w.service.Resume(ctxNS(t), &taskapi.ResumeRequest{ID: "vm"})
	w.must("resume", err)
	want := []string{`kill "" 28`, `kill "e#1.1" 9`, `resize "" 80`}
	if diff := cmp.Diff(want, w.agent.heard()); diff != "" {
		t.Error(diff)
	}
	if got := w.wait("e"); got != 137 {
		t.Errorf("exec ended with %d", got)
	}
	pause()
	w.must("kill", w.kill("", 9))
	if got := w.wait(""); got != 137 || w.status("") != tasktypes.Status_STOPPED {
		t.Errorf("SIGKILL of a paused task: status %d, %s", got, w.status(""))
	}
}

// A VMM that hangs in a pause can still be killed, and nothing is told after the exit.
func TestKillDuringAPauseThatHangs(t *testing.T) {
	w := newWorld(t).running()
	w.at("pause", func() error { return w.kill("", 9) })
	if _, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"}); !errdefs.IsFailedPrecondition(
		errgrpc.ToNative(err)) {
		t.Errorf("pause = %v", err)
	}
	if got := w.wait(""); got != 137 {
		t.Errorf("exit status %d", got)
	}
	want := []string{"/tasks/create", "/tasks/start", "/godwit/kill", "/tasks/exit"}
	if !eventually(func() bool { return slices.Equal(w.events.all(), want) }) {
		t.Errorf("events %v", w.events.all())
	}
}

// A VMM that was too slow to pause in time may do so later: the pause is taken back as soon
// as it answers. Until then the task is pausing, and no capture may begin.
func TestPauseThatComesTooLate(t *testing.T) {
	w := newWorld(t)
	var hangs atomic.Bool
	var tries, said atomic.Int32
	w.service.log = slog.New(slog.NewTextHandler(io.Discard,
		&slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.MessageKey && a.Value.String() == "take back a pause that failed" {
				said.Add(1)
			}
			return a
		}}))
	w.running()
	hangs.Store(true)
	w.at("pause", func() error { w.machine.set(false); return context.DeadlineExceeded })
	w.at("resume", func() error {
		tries.Add(1)
		if hangs.Load() {
			return context.DeadlineExceeded
		}
		return nil
	})
	_, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
	if !errors.Is(errgrpc.ToNative(err), context.DeadlineExceeded) {
		t.Errorf("pause = %v", err)
	}
	if got := w.status(""); got != tasktypes.Status_PAUSING {
		t.Errorf("a task whose VMM hangs in a pause is %s", got)
	}
	if _, err := w.capture(); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("capture = %v", err)
	}
	if !eventually(func() bool { return tries.Load() > 3 }) || said.Load() != 1 {
		t.Errorf("of the same error the log tells %d times in %d tries", said.Load(), tries.Load())
	}
	hangs.Store(false)
	if !eventually(func() bool { return w.status("") == tasktypes.Status_RUNNING }) || !w.machine.running() {
		t.Errorf("the task is %s, its VMM runs: %v", w.status(""), w.machine.running())
	}
	if slices.Contains(w.events.all(), "/tasks/paused") {
		t.Error("a pause was told that has failed")
	}
}

// A VMM that does not even die holds up no caller for ever. What it has of the node's RAM counts as taken until it has
// ended, which Delete sees to.
func TestKillOfAVMMThatDoesNotDie(t *testing.T) {
	w := newWorld(t).running()
	real := endBound
	t.Cleanup(func() { endBound = real })
	endBound = 50 * time.Millisecond
	_, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
	w.must("pause", err)
	w.machine.mu.Lock()
	w.machine.deaf = true
	w.machine.mu.Unlock()
	killed := make(chan error, 1)
	go func() { killed <- w.kill("", 9) }()
	select {
	case err := <-killed:
		w.must("kill", err)
	case <-time.After(time.Minute):
		t.Fatal("the kill waits")
	}
	if got := w.status(""); got != tasktypes.Status_STOPPED {
		t.Errorf("the task is %s", got)
	}
	ram := w.journal().RAM
	if _, err := os.Stat(ram); err != nil {
		t.Errorf("the RAM of a VMM that lives is given back: %v", err)
	}
	w.machine.mu.Lock()
	w.machine.deaf = false
	w.machine.mu.Unlock()
	w.must("delete", w.delete())
	w.nothingLeft()
}

// The id of an exec can be used again: what the guest has under an earlier one of that
// id is another process.
func TestExecIDReuse(t *testing.T) {
	w := newWorld(t).running()
	w.agent.heard()
	var heard []string
	for n := range 2 {
		w.exec("e")
		w.must("kill", w.kill("e", 15))
		w.wait("e")
		_, err := w.service.Delete(ctxNS(t), &taskapi.DeleteRequest{ID: "vm", ExecID: "e"})
		w.must("delete", err)
		eventually(func() bool {
			heard = append(heard, w.agent.heard()...)
			return len(heard) == 3*(n+1)
		})
	}
	want := []string{`start "e#1.1"`, `kill "e#1.1" 15`, `remove "e#1.1"`, `start "e#1.2"`, `kill "e#1.2" 15`,
		`remove "e#1.2"`}
	if diff := cmp.Diff(want, heard); diff != "" {
		t.Error(diff)
	}
}

// An exec whose Start failed without an answer of the guest is ended there, and one that
// was never started can be deleted: who waits for it hears of it.
func TestExecThatNeverRan(t *testing.T) {
	w := newWorld(t).running()
	_, err := w.service.Exec(ctxNS(t), execRequest("lost"))
	w.must("exec", err)
	w.agent.heard()
	ctx, cancel := context.WithCancel(ctxNS(t))
	w.at("start process", func() error { cancel(); return ctx.Err() })
	if _, err := w.service.Start(ctx, &taskapi.StartRequest{ID: "vm", ExecID: "lost"}); err == nil {
		t.Fatal("start succeeded")
	}
	w.at("start process", nil)
	if got := w.wait("lost"); got != 255 {
		t.Errorf("exit status %d", got)
	}
	if !eventually(func() bool { return slices.Contains(w.agent.heard(), `kill "lost#1.1" 9`) }) {
		t.Error("the guest was not told to end it")
	}
	_, err = w.service.Exec(ctxNS(t), execRequest("unstarted"))
	w.must("exec", err)
	if r, err := w.service.State(ctxNS(t), &taskapi.StateRequest{ID: "vm", ExecID: "unstarted"}); err != nil ||
		r.GetPid() != 0 {
		t.Errorf("state = %v, %v", r, err)
	}
	vm, _ := w.service.current()
	p := vm.owner.execs["unstarted"]
	_, err = w.service.Delete(ctxNS(t), &taskapi.DeleteRequest{ID: "vm", ExecID: "unstarted"})
	w.must("delete", err)
	select {
	case <-p.done:
	default:
		t.Error("its waiters wait for ever")
	}
	want := []string{"/tasks/create", "/tasks/start", "/tasks/exec-added", "/tasks/exec-added", "/tasks/delete"}
	if !eventually(func() bool { return slices.Equal(w.events.all(), want) }) {
		t.Errorf("events %v", w.events.all())
	}
}

// What an exec cannot be is refused when it is made.
func TestExecRefused(t *testing.T) {
	w := newWorld(t).running()
	for name, c := range map[string]struct {
		id, process string
		is          func(error) bool
	}{
		"no id":      {"", `{"args":["x"],"cwd":"/"}`, errdefs.IsInvalidArgument},
		"no process": {"e", ``, errdefs.IsInvalidArgument},
		"no command": {"e", `{"cwd":"/"}`, errdefs.IsInvalidArgument},
		"cwd":        {"e", `{"args":["x"],"cwd":"here"}`, errdefs.IsInvalidArgument},
		"scheduler":  {"e", `{"args":["x"],"cwd":"/","scheduler":{"policy":"SCHED_FIFO"}}`, errdefs.IsNotImplemented},
	} {
		_, err := w.service.Exec(ctxNS(t), &taskapi.ExecProcessRequest{ID: "vm", ExecID: c.id,
			Spec: &anypb.Any{Value: []byte(c.process)}})
		if !c.is(errgrpc.ToNative(err)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A terminal has its size before its process looks, and none after its end.
func TestResize(t *testing.T) {
	w := newWorld(t)
	w.must("create", w.create())
	resize := func(width uint32) error {
		_, err := w.service.ResizePty(ctxNS(t), &taskapi.ResizePtyRequest{ID: "vm", Width: width, Height: 24})
		return errgrpc.ToNative(err)
	}
	w.must("resize", resize(100))
	w.must("start", w.start())
	said := w.agent.heard()
	if i, j := slices.Index(said, `resize "" 100`), slices.Index(said, `start ""`); i < 0 || i > j {
		t.Errorf("guest heard %q", said)
	}
	w.must("kill", w.kill("", 9))
	w.wait("")
	if err := resize(50); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("resize after the end = %v", err)
	}
}

// One meeting with the memory limit takes every process and is one event.
func TestOOMEventOnce(t *testing.T) {
	w := newWorld(t)
	w.agent.oom = true
	w.running().exec("e")
	w.agent.exit("e#1.1") <- 137
	w.agent.exit("") <- 137
	w.wait("")
	n := func(topic string) (n int) {
		for _, got := range w.events.all() {
			if got == topic {
				n++
			}
		}
		return n
	}
	if !eventually(func() bool { return n("/tasks/exit") == 2 }) || n("/tasks/oom") != 1 {
		t.Errorf("events %v", w.events.all())
	}
}

// An Update before the Start is what the container starts with; a running guest gets
// what changes, whole.
func TestUpdate(t *testing.T) {
	w := newWorld(t)
	w.must("create", w.create())
	update := func(resources string) error {
		_, err := w.service.Update(ctxNS(t), &taskapi.UpdateTaskRequest{ID: "vm",
			Resources: &anypb.Any{Value: []byte(resources)}})
		return errgrpc.ToNative(err)
	}
	w.must("update", update(`{"memory":{"limit":67108864},"cpu":{"shares":512}}`))
	vm, _ := w.service.current()
	if r := vm.spec().Container.OCI.Linux.Resources; r == nil || *r.Memory.Limit != 64<<20 || *r.CPU.Shares != 512 {
		t.Errorf("the container starts with %+v", r)
	}
	w.must("start", w.start())
	w.agent.heard()
	w.must("update", update(`{"cpu":{"quota":50000},"memory":{"limit":67108864}}`))
	if diff := cmp.Diff([]string{`update {"cpu":{"shares":512,"quota":50000}}`}, w.agent.heard()); diff != "" {
		t.Error(diff)
	}
	if err := update(`{"memory":{"limit":1099511627776}}`); !errdefs.IsInvalidArgument(err) || len(w.agent.heard()) > 0 {
		t.Errorf("update beyond the VM = %v", err)
	}
}
