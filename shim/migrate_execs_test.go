package shim

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/guesttool"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/stdio"
)

// accompanied is moving with an exec that has a stdin and has written text to a file.
func accompanied(t *testing.T, text string) (w *world, out string) {
	t.Helper()
	w = moving(t)
	w.execs = true
	w.agent.says(text)
	out = filepath.Join(t.TempDir(), "out")
	w.must("make a file", os.WriteFile(out, nil, 0o600))
	stdin := filepath.Join(t.TempDir(), "stdin")
	w.must("make a fifo", syscall.Mkfifo(stdin, 0o600))
	r := execRequest("e")
	r.Stdin, r.Stdout = stdin, out
	_, err := w.service.Exec(ctxNS(t), r)
	w.must("exec", err)
	_, err = w.service.Start(ctxNS(t), &taskapi.StartRequest{ID: "vm", ExecID: "e"})
	w.must("start exec", err)
	if !eventually(func() bool { got, _ := os.ReadFile(out); return string(got) == text }) {
		t.Fatal("the exec's output does not come")
	}
	return w, out
}

// from is the destination of what is sent now.
func from(t *testing.T, from *world) *world {
	t.Helper()
	o, err := from.offer()
	from.must("offer", err)
	_, err = from.send()
	from.must("send", err)
	w := newWorld(t)
	w.cfg.Node = "b"
	w.records.rec, w.store.resume = from.records.rec, from.store.resume
	w.agent.exit("") // its init
	w.stream = &machinev1.Stream{Spec: o.GetSpec(), Facts: o.GetFacts(), Certificate: o.GetCertificate(),
		Generation: from.ref().GetGeneration()}
	return w
}

// arrive takes the VM up at its destination.
func (w *world) arrive() error {
	w.t.Helper()
	w.must("create", w.receive())
	w.connect()
	if !w.arrived() {
		w.t.Fatalf("phase %s", w.phase())
	}
	w.commit()
	return w.start()
}

// A live exec moves with its VM. The destination's shim serves it under its id as if it had been started there. Its
// output goes on, without a gap, where the task's goes.
func TestExecsGoAlong(t *testing.T) {
	source, _ := accompanied(t, "before ")
	w := from(t, source)
	var resume journal.Resume
	w.must("read resume", json.Unmarshal(w.store.resume, &resume))
	if len(resume.Execs) != 1 || resume.Execs[0].Offsets.Stdout != 7 || !resume.Execs[0].Stdin || resume.Execs[0].Stderr {
		t.Fatalf("what travels: %+v", resume)
	}
	resume.Execs[0].Offsets.Pending = []byte("typed")
	if resume.Execs[0].Closed {
		t.Error("its stdin is closed")
	}
	w.store.resume, _ = json.Marshal(resume)
	log, guest := filepath.Join(t.TempDir(), "log"), resume.Execs[0].Guest
	w.stdout = "file://" + log
	w.agent.says("before after")
	for _, id := range []string{guest, "ended#1.9"} {
		w.agent.exit(id)
	}
	w.must("arrive", w.arrive())

	if s := w.status("e"); s != tasktypes.Status_RUNNING {
		t.Errorf("the exec is %s", s)
	}
	if pids, err := w.service.Pids(ctxNS(t), &taskapi.PidsRequest{ID: "vm"}); err != nil || len(pids.GetProcesses()) != 2 {
		t.Errorf("pids %v, %v", pids, err)
	}
	if _, err := w.service.Exec(ctxNS(t), execRequest("e")); !errdefs.IsAlreadyExists(errgrpc.ToNative(err)) {
		t.Errorf("the same exec once more: %v", err)
	}
	// The task's own streams, of which the source had none, begin anew.
	if !eventually(func() bool {
		got, _ := os.ReadFile(log)
		return len(got) == 2*len("before after")+len("after") && strings.Contains(string(got), "after")
	}) {
		got, _ := os.ReadFile(log)
		t.Errorf("the log says %q", got)
	}
	_, err := w.service.ResizePty(ctxNS(t), &taskapi.ResizePtyRequest{ID: "vm", ExecID: "e", Width: 80, Height: 25})
	w.must("resize", err)
	_, err = w.service.CloseIO(ctxNS(t), &taskapi.CloseIORequest{ID: "vm", ExecID: "e", Stdin: true})
	w.must("close stdin", err)
	var said []string
	want := []string{`remove "ended#1.9"`, `resize "` + guest + `" 80`, `close "` + guest + `" at 5`}
	if !eventually(func() bool {
		said = append(said, w.agent.heard()...)
		return !slices.ContainsFunc(want, func(s string) bool { return !slices.Contains(said, s) })
	}) {
		t.Errorf("the guest heard %q, want %q", said, want)
	}
	w.agent.mu.Lock()
	if typed := string(w.agent.typed); typed != "typed" {
		t.Errorf("its stdin got %q", typed)
	}
	w.agent.mu.Unlock()
	w.agent.exit(guest) <- 7
	if status := w.wait("e"); status != 7 {
		t.Errorf("it ended with %d", status)
	}
	_, err = w.service.Delete(ctxNS(t), &taskapi.DeleteRequest{ID: "vm", ExecID: "e"})
	w.must("delete", err)
	if !eventually(func() bool { return slices.Contains(w.agent.heard(), `remove "`+guest+`"`) }) {
		t.Error("the guest keeps what was deleted")
	}
	order := []string{"/tasks/create", "/tasks/start", "/tasks/exec-added", "/tasks/exec-started", "/tasks/exit",
		"/tasks/delete"}
	if !eventually(func() bool { return slices.Equal(w.events.all(), order) }) {
		t.Errorf("events %q", w.events.all())
	}
}

// What a client has closed is closed at the destination, after what was typed. An id is free whose exec has come along
// and ended: no client there would delete it.
func TestClosedExecGoesAlong(t *testing.T) {
	source, _ := accompanied(t, "")
	_, err := source.service.CloseIO(ctxNS(t), &taskapi.CloseIORequest{ID: "vm", ExecID: "e", Stdin: true})
	source.must("close stdin", err)
	w := from(t, source)
	var resume journal.Resume
	w.must("read resume", json.Unmarshal(w.store.resume, &resume))
	if len(resume.Execs) != 1 || !resume.Execs[0].Closed {
		t.Fatalf("what travels: %+v", resume)
	}
	resume.Execs[0].Offsets.Pending = []byte("typed")
	resume.Execs[0].Offsets.StdinDone = false
	w.store.resume, _ = json.Marshal(resume)
	guest := resume.Execs[0].Guest
	w.agent.exit(guest)
	w.must("arrive", w.arrive())
	var said []string
	if !eventually(func() bool {
		said = append(said, w.agent.heard()...)
		return slices.Contains(said, `close "`+guest+`" at 5`)
	}) {
		t.Errorf("the guest heard %q", said)
	}
	if _, err := w.service.Exec(ctxNS(t), execRequest("e")); !errdefs.IsAlreadyExists(errgrpc.ToNative(err)) {
		t.Errorf("the same exec while it runs: %v", err)
	}
	w.agent.exit(guest) <- 0
	if status := w.wait("e"); status != 0 {
		t.Errorf("it ended with %d", status)
	}
	_, err = w.service.Exec(ctxNS(t), execRequest("e"))
	w.must("the same exec after its end", err)
}

// At its source an exec that has left ends after the hand-over, with the status for an end that is not known here.
// Init's end stays the last.
func TestExecLeaves(t *testing.T) {
	w, _ := accompanied(t, "")
	_, err := w.send()
	w.must("send", err)
	if err := w.kill("e", 9); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("kill of an exec on its way: %v", err)
	}
	close := &taskapi.CloseIORequest{ID: "vm", ExecID: "e", Stdin: true}
	if _, err := w.service.CloseIO(ctxNS(t), close); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("close of its stdin: %v", err)
	}
	// Its end may be known, and its output not yet out: that it ended well is told where
	// the rest of the output goes.
	vm, _ := w.service.current()
	vm.owner.execs["e"].pump.End(&agentv1.WaitResponse{})
	w.must("vote", w.vote())
	if _, told := w.events.exit("e"); told {
		t.Error("it ends before the hand-over")
	}
	_, err = w.machineService().Release(t.Context(), &machinev1.ReleaseRequest{Ref: w.ref(), Digest: streamDigest})
	w.must("release", err)
	if status := w.wait("e"); status != movedStatus {
		t.Errorf("it ended with %d", status)
	}
	if !eventually(func() bool { _, told := w.events.exit("vm"); return told }) {
		t.Fatal("no exit of the task")
	}
	if status, told := w.events.exit("e"); !told || status != movedStatus {
		t.Errorf("its exit: %d, %v", status, told)
	}
	w.must("delete", w.delete())
	w.nothingLeft()
}

// An exec goes on as if nothing had been after a move that was broken off before or after the vote. It does so too
// after one that was taken back after its commit: each byte of its output comes once.
func TestExecStays(t *testing.T) {
	for _, how := range []string{"before the vote", "voted", "reverted"} {
		t.Run(how, func(t *testing.T) {
			w, out := accompanied(t, "before ")
			_, err := w.send()
			w.must("send", err)
			ref := w.ref()
			if how != "before the vote" {
				w.must("vote", w.vote())
			}
			w.agent.says("before after")
			if how == "reverted" {
				g := ref.GetGeneration() + 2
				w.records.rec.Generation = g
				_, err = w.machineService().Revert(t.Context(), &machinev1.RevertRequest{Ref: ref, OwnerGeneration: g})
			} else {
				_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: ref})
			}
			w.must("give back", err)
			if !eventually(func() bool { got, _ := os.ReadFile(out); return len(got) >= len("before after") }) {
				t.Error("its output does not go on")
			}
			w.must("kill", w.kill("e", 9))
			if status := w.wait("e"); status != killed {
				t.Errorf("it ended with %d", status)
			}
			if got, _ := os.ReadFile(out); string(got) != "before after" {
				t.Errorf("it said %q", got)
			}
		})
	}
}

// Whatever fails while an exec is sent along, it runs on at its source.
func TestSendWithAnExecFailsAtEachCall(t *testing.T) {
	prepare := func(w *world) {
		w.running()
		w.open("a", "b")
		w.execs = true
		w.exec("e")
	}
	failEach(t, prepare, (*world).sendAndBack, func(t *testing.T, w *world, name string) {
		if s := w.status("e"); s != tasktypes.Status_RUNNING {
			t.Fatalf("%s failed: the exec is %s", name, s)
		}
		w.must("kill", w.kill("e", 15))
		if status := w.wait("e"); status != 143 {
			t.Errorf("%s failed: the exec ended with %d", name, status)
		}
	})
}

// A Start that fails at the destination has had no exec: nothing is told of one, and
// nothing of its streams stays.
func TestStartWithAnExecFailsAtEachCall(t *testing.T) {
	for n := 1; ; n++ {
		source := moving(t)
		source.execs = true
		source.exec("e")
		w := from(t, source)
		w.agent.exit("e#1.1")
		w.must("create", w.receive())
		w.connect()
		if !w.arrived() {
			t.Fatalf("phase %s", w.phase())
		}
		w.commit()
		w.arm(n)
		err := w.start()
		name := w.fired()
		w.arm(0)
		if name == "" {
			w.must("start", err)
			if n < 4 || w.status("e") != tasktypes.Status_RUNNING {
				t.Errorf("%d calls could fail, the exec is %s", n-1, w.status("e"))
			}
			return
		}
		if err == nil || w.phase() == journal.Ready { // it did not matter, or the task may be started again
			continue
		}
		if _, err := w.service.State(ctxNS(t), &taskapi.StateRequest{ID: "vm", ExecID: "e"}); !errdefs.IsNotFound(
			errgrpc.ToNative(err)) {
			t.Errorf("%s failed: the exec is known: %v", name, err)
		}
		w.must("delete", w.delete())
		if all := w.events.all(); slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, "exec") }) {
			t.Errorf("%s failed: events %q", name, all)
		}
		w.nothingLeft()
	}
}

// What is more than the stream has room for is refused, and the VM goes on.
func TestTooManyExecs(t *testing.T) {
	w := moving(t)
	w.execs = true
	for i := range 3 {
		w.exec(fmt.Sprintf("e%d", i))
	}
	vm, _ := w.service.current()
	for _, p := range vm.owner.execs {
		p.pump.Stop()
		p.pump = stdio.NewPump(p.guest, new(stdio.Streams), client.Offsets{Pending: make([]byte, 64<<10)})
	}
	if _, err := w.send(); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "3 execs") {
		t.Errorf("send: %v", err)
	}
	if !vm.inState(Running) || !w.machine.running() || w.status("e1") != tasktypes.Status_RUNNING {
		t.Errorf("VM is %s", vm.state)
	}
}

// A cold move takes execs along, too: the snapshot says what the waking shim must know.
func TestExecsGoAlongCold(t *testing.T) {
	w := newWorld(t).running()
	w.execs = true
	w.exec("e")
	r, err := w.capture()
	w.must("capture", err)
	w.must("vote", w.vote())
	ref := w.ref()
	w.records.sleep(r.GetDigest())
	_, err = w.machineService().Release(t.Context(), &machinev1.ReleaseRequest{Ref: ref, Digest: r.GetDigest(),
		Moved: true})
	w.must("release", err)
	if status := w.wait("e"); status != movedStatus {
		t.Errorf("at the source it ended with %d", status)
	}
	w.must("delete", w.delete())
	w.restart()
	w.must("create", w.create())
	w.must("start", w.start())
	if s := w.status("e"); s != tasktypes.Status_RUNNING {
		t.Errorf("the exec is %s", s)
	}
	w.must("kill", w.kill("e", 15))
	if status := w.wait("e"); status != 143 {
		t.Errorf("it ended with %d", status)
	}
}

// A tool that a client of this node runs does not move with its VM: its output is for that client alone.
func TestToolsStay(t *testing.T) {
	source, _ := accompanied(t, "")
	r := execRequest(guesttool.ExecPrefix + "x")
	r.Stdout = filepath.Join(t.TempDir(), "out")
	source.must("make a file", os.WriteFile(r.GetStdout(), nil, 0o600))
	_, err := source.service.Exec(ctxNS(t), r)
	source.must("exec", err)
	_, err = source.service.Start(ctxNS(t), &taskapi.StartRequest{ID: "vm", ExecID: r.GetExecID()})
	source.must("start", err)
	from(t, source)
	var resume journal.Resume
	source.must("read resume", json.Unmarshal(source.store.resume, &resume))
	if len(resume.Execs) != 1 || resume.Execs[0].ID != "e" {
		t.Errorf("what travels: %+v", resume.Execs)
	}
}
