//go:build integration

package ctr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// The task service on a real VM, asked over the shim's own socket: what ctr does not
// show. The VM's init has no handlers, as most have not.
func TestCalls(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true})
	n := h.Node(0)
	n.CheckClean(t)
	detached(t, n, "--memory-limit", fmt.Sprint(128<<20), images.Busybox, "vm", "sleep", "100000")
	s := dialShim(t, n, "vm")
	for _, c := range []struct {
		name string
		test func(*testing.T, *shim)
	}{
		{"cgroup", testCgroup},
		{"codes", testCodes},
		{"signals", testSignals},
		{"exec ids", testExecIDs},
		{"signals of a pause", testPausedSignals},
		{"start that is given up", testGivenUpStart},
		{"clock after a pause", testClock},
		{"update", testUpdate},
		{"stopped VMM", testStoppedVMM},
		{"containerd down", testDaemonDown},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, s) })
	}
}

// Each refusal has the class that containerd's clients read.
func testCodes(t *testing.T, s *shim) {
	exec := func(id, process string) error {
		_, err := s.Exec(s.ctx, &taskapi.ExecProcessRequest{ID: s.vm, ExecID: id, Spec: &anypb.Any{Value: []byte(process)}})
		return err
	}
	must(t, "exec", exec("unstarted", `{"args":["true"],"cwd":"/"}`))
	for name, c := range map[string]struct {
		is   func(error) bool
		call func() error
		says string
	}{
		"state of nobody": {errdefs.IsNotFound, func() error {
			_, err := s.State(s.ctx, &taskapi.StateRequest{ID: "x"})
			return err
		}, "x"},
		"state of no exec": {errdefs.IsNotFound, func() error {
			_, err := s.State(s.ctx, &taskapi.StateRequest{ID: s.vm, ExecID: "x"})
			return err
		}, "x"},
		"pids of nobody": {errdefs.IsNotFound, func() error {
			_, err := s.Pids(s.ctx, &taskapi.PidsRequest{ID: "x"})
			return err
		}, "x"},
		"wait for no exec": {errdefs.IsNotFound, func() error {
			_, err := s.Wait(s.ctx, &taskapi.WaitRequest{ID: s.vm, ExecID: "x"})
			return err
		}, "x"},
		"kill of no exec": {errdefs.IsNotFound, func() error { return s.kill("x", 9, false) }, "x"},
		"kill of an unstarted": {errdefs.IsFailedPrecondition, func() error {
			return s.kill("unstarted", 9, false)
		}, "not started"},
		"kill with no signal": {errdefs.IsInvalidArgument, func() error { return s.kill("", 65, false) }, "65"},
		"exec of that id": {errdefs.IsAlreadyExists, func() error {
			return exec("unstarted", `{"args":["true"],"cwd":"/"}`)
		}, "unstarted"},
		"exec of nothing": {errdefs.IsInvalidArgument, func() error { return exec("y", `{"cwd":"/"}`) }, "args"},
		"delete of a running": {errdefs.IsFailedPrecondition, func() error {
			_, err := s.Delete(s.ctx, &taskapi.DeleteRequest{ID: s.vm})
			return err
		}, "running"},
		"resume of a running": {errdefs.IsFailedPrecondition, func() error {
			_, err := s.Resume(s.ctx, &taskapi.ResumeRequest{ID: s.vm})
			return err
		}, "running"},
		"create of another": {errdefs.IsAlreadyExists, func() error {
			_, err := s.Create(s.ctx, &taskapi.CreateTaskRequest{ID: "z"})
			return err
		}, "vm"},
		"start of a running": {errdefs.IsFailedPrecondition, func() error {
			_, err := s.Start(s.ctx, &taskapi.StartRequest{ID: s.vm})
			return err
		}, "running"},
		"checkpoint": {errdefs.IsNotImplemented, func() error {
			o, err := anypb.New(&runcoptions.CheckpointOptions{Exit: true})
			if err == nil {
				_, err = s.Checkpoint(s.ctx, &taskapi.CheckpointTaskRequest{ID: s.vm, Options: o})
			}
			return err
		}, "godwit hibernate"},
		"resize of no exec": {errdefs.IsNotFound, func() error {
			_, err := s.ResizePty(s.ctx, &taskapi.ResizePtyRequest{ID: s.vm, ExecID: "x"})
			return err
		}, "x"},
		"closing no exec": {errdefs.IsNotFound, func() error {
			_, err := s.CloseIO(s.ctx, &taskapi.CloseIORequest{ID: s.vm, ExecID: "x"})
			return err
		}, "x"},
		"stats of nobody": {errdefs.IsNotFound, func() error {
			_, err := s.Stats(s.ctx, &taskapi.StatsRequest{ID: "x"})
			return err
		}, "x"},
	} {
		err := c.call()
		if err == nil || !c.is(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r, err := s.Connect(s.ctx, &taskapi.ConnectRequest{ID: "unknown"})
	if err != nil || r.GetShimPid() == 0 || r.GetTaskPid() == 0 || r.GetVersion() == "" {
		t.Errorf("connect with an unknown id: %v, %v", r, err)
	}
	s.forget(t, "unstarted")
}

// Signals go to one process or to all; process 1 gets those that it has no handler for
// as any process 1 does: not at all.
func testSignals(t *testing.T, s *shim) {
	s.exec(t, "one", "exec sleep 1000")
	s.exec(t, "two", "exec sleep 1000")
	must(t, "SIGTERM to init", s.kill("", 15, false))
	must(t, "SIGTERM to an exec", s.kill("one", 15, false))
	if got := s.ended(t, "one"); got != 143 {
		t.Errorf("exec ended with %d", got)
	}
	for range 2 {
		if err := s.kill("one", 9, false); !errdefs.IsNotFound(errgrpc.ToNative(err)) {
			t.Errorf("kill after the exit: %v", err)
		}
	}
	must(t, "SIGUSR1 to all", s.kill("", 10, true))
	if got := s.ended(t, "two"); got != 138 {
		t.Errorf("the other exec ended with %d", got)
	}
	r, err := s.State(s.ctx, &taskapi.StateRequest{ID: s.vm})
	if err != nil || r.GetStatus() != tasktypes.Status_RUNNING {
		t.Errorf("after signals that it does not know init is %v, %v", r, err)
	}
	s.forget(t, "one")
	s.forget(t, "two")
}

// An id can be used again at once, and many waiters hear of one end. A kill that comes while the exec is being started
// reaches it.
func testExecIDs(t *testing.T, s *shim) {
	for i := range uint32(5) {
		s.exec(t, "again", fmt.Sprintf("exit %d", 10+i))
		codes := make(chan uint32)
		for range 8 {
			go func() {
				r, err := s.Wait(s.ctx, &taskapi.WaitRequest{ID: s.vm, ExecID: "again"})
				if err != nil {
					t.Error(err)
				}
				codes <- r.GetExitStatus()
			}()
		}
		for range 8 {
			if got := <-codes; got != 10+i {
				t.Errorf("exit status %d, want %d", got, 10+i)
			}
		}
		s.forget(t, "again")
	}
	data := []byte(`{"args":["sleep","1000"],"cwd":"/","env":["PATH=/bin"]}`)
	_, err := s.Exec(s.ctx, &taskapi.ExecProcessRequest{ID: s.vm, ExecID: "young", Spec: &anypb.Any{Value: data}})
	must(t, "exec", err)
	started := make(chan error, 1)
	go func() {
		_, err := s.Start(s.ctx, &taskapi.StartRequest{ID: s.vm, ExecID: "young"})
		started <- err
	}()
	err = harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		return s.kill("young", 9, false) // refused until the Start has begun
	})
	must(t, "kill", err)
	must(t, "start", <-started)
	if got := s.ended(t, "young"); got != 137 {
		t.Errorf("killed while it was started: %d", got)
	}
	s.forget(t, "young")
}

// A paused task's processes get their signals when it goes on.
func testPausedSignals(t *testing.T, s *shim) {
	s.exec(t, "frozen", "exec sleep 1000")
	_, err := s.Pause(s.ctx, &taskapi.PauseRequest{ID: s.vm})
	must(t, "pause", err)
	must(t, "kill", s.kill("frozen", 15, false))
	for _, id := range []string{"", "frozen"} {
		r, err := s.State(s.ctx, &taskapi.StateRequest{ID: s.vm, ExecID: id})
		if err != nil || r.GetStatus() != tasktypes.Status_PAUSED {
			t.Errorf("process %q is %v, %v", id, r.GetStatus(), err)
		}
	}
	_, err = s.Resume(s.ctx, &taskapi.ResumeRequest{ID: s.vm})
	must(t, "resume", err)
	if got := s.ended(t, "frozen"); got != 143 {
		t.Errorf("exec ended with %d", got)
	}
	s.forget(t, "frozen")
}

// figures of a VM that both versions of cgroups have.
type figures struct{ usage, limit, cpu, periods, oomKills uint64 }

func (s *shim) figures(t *testing.T) figures {
	t.Helper()
	r, err := s.Stats(s.ctx, &taskapi.StatsRequest{ID: s.vm})
	must(t, "stats", err)
	message, err := typeurl.UnmarshalAny(r.GetStats())
	must(t, "stats", err)
	unified := cgroups.Mode() == cgroups.Unified
	switch m := message.(type) {
	case *v1.Metrics:
		if !unified {
			return figures{m.GetMemory().GetUsage().GetUsage(), m.GetMemory().GetUsage().GetLimit(),
				m.GetCPU().GetUsage().GetTotal() / 1000,
				m.GetCPU().GetThrottling().GetPeriods(), m.GetMemoryOomControl().GetOomKill()}
		}
	case *v2.Metrics:
		if unified {
			return figures{m.GetMemory().GetUsage(), m.GetMemory().GetUsageLimit(), m.GetCPU().GetUsageUsec(),
				m.GetCPU().GetNrPeriods(), m.GetMemoryEvents().GetOomKill()}
		}
	}
	t.Fatalf("stats are %T, the host's cgroups are unified: %v", message, unified)
	return figures{}
}

// figuresWhen polls them: who asks a guest that is slow gets what it has told before.
func (s *shim) figuresWhen(t *testing.T, what string, ok func(figures) bool) figures {
	t.Helper()
	err := harness.Poll(s.ctx, harness.Slow(time.Minute), func(context.Context) error {
		if f := s.figures(t); !ok(f) {
			return fmt.Errorf("%s: %+v", what, f)
		}
		return nil
	})
	must(t, "stats", err)
	return s.figures(t)
}

// Update changes the limits of the running container; what the VM cannot grow to is
// refused by its field.
func testUpdate(t *testing.T, s *shim) {
	update := func(resources string) error {
		_, err := s.Update(s.ctx, &taskapi.UpdateTaskRequest{ID: s.vm, Resources: &anypb.Any{Value: []byte(resources)}})
		return errgrpc.ToNative(err)
	}
	before := s.figuresWhen(t, "the limit at first", func(f figures) bool { return f.limit == 128<<20 })
	must(t, "less memory", update(fmt.Sprintf(`{"memory":{"limit":%d}}`, 64<<20)))
	s.figuresWhen(t, "the limit in the guest", func(f figures) bool { return f.limit == 64<<20 })
	must(t, "memory back", update(fmt.Sprintf(`{"memory":{"limit":%d}}`, 128<<20)))
	if before.periods != 0 {
		t.Errorf("%d periods without a quota", before.periods)
	}
	must(t, "quota", update(`{"cpu":{"quota":20000,"period":100000}}`))
	s.exec(t, "busy", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
	s.ended(t, "busy")
	s.forget(t, "busy")
	s.figuresWhen(t, "periods under a quota", func(f figures) bool { return f.periods > 0 })
	must(t, "no quota", update(`{"cpu":{"quota":-1}}`))
	for field, resources := range map[string]string{
		"memory.limit": fmt.Sprintf(`{"memory":{"limit":%d}}`, 512<<20), "cpu.quota": `{"cpu":{"quota":200000}}`,
	} {
		if err := update(resources); !errdefs.IsInvalidArgument(err) ||
			!strings.Contains(err.Error(), "linux.resources."+field) {
			t.Errorf("%s beyond the VM: %v", field, err)
		}
	}
	if err := update(`{"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":1}]}}`); !errdefs.IsNotImplemented(
		err) || !strings.Contains(err.Error(), "blockIO") {
		t.Errorf("a device of the host: %v", err)
	}
}

// readOnly calls answer from what the host knows. The rule of containerd's reload:
// none of them may wait for a guest, or a VMM, that does not answer.
func readOnly(s *shim) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"state": func(ctx context.Context) error { _, err := s.State(ctx, &taskapi.StateRequest{ID: s.vm}); return err },
		"pids":  func(ctx context.Context) error { _, err := s.Pids(ctx, &taskapi.PidsRequest{ID: s.vm}); return err },
		"connect": func(ctx context.Context) error {
			_, err := s.Connect(ctx, &taskapi.ConnectRequest{ID: s.vm})
			return err
		},
		"stats": func(ctx context.Context) error { _, err := s.Stats(ctx, &taskapi.StatsRequest{ID: s.vm}); return err },
	}
}

// With the VMM stopped, a thousand calls of each kind take about as long as with one that
// runs.
func testStoppedVMM(t *testing.T, s *shim) {
	const calls = 1000
	round := func(calls int) map[string]time.Duration {
		mean := map[string]time.Duration{}
		for name, call := range readOnly(s) {
			begun := time.Now()
			for range calls {
				must(t, name, call(s.ctx))
			}
			mean[name] = time.Since(begun) / time.Duration(calls)
		}
		return mean
	}
	running := round(calls / 5) // its Stats do ask the guest
	s.signalVMM(t, "STOP")
	stopped := round(calls)
	ctx, cancel := context.WithTimeout(s.ctx, 50*time.Millisecond)
	_, err := s.Wait(ctx, &taskapi.WaitRequest{ID: s.vm})
	cancel()
	// the client's word or the shim's
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(errgrpc.ToNative(err), context.DeadlineExceeded) {
		t.Errorf("wait with a deadline: %v", err)
	}
	again := round(calls)
	s.signalVMM(t, "CONT")
	for name, usual := range running {
		t.Logf("one of %d calls of %s: %v, with the VMM stopped %v and %v", calls, name, usual, stopped[name], again[name])
		// The better of two rounds: the machine has other work.
		if best := min(stopped[name], again[name]); best > 5*usual {
			t.Errorf("a call of %s takes %v, with a VMM that runs %v", name, best, usual)
		}
	}
	s.exec(t, "alive", "exit 3")
	if got := s.ended(t, "alive"); got != 3 {
		t.Errorf("exec after it: %d", got)
	}
	s.forget(t, "alive")
}

// What ends while containerd is down, here by the container's own memory limit, is told when somebody listens again: in
// order, and once. The figures stay after the end.
func testDaemonDown(t *testing.T, s *shim) {
	n := s.node
	heard := watchEvents(t, n)
	s.exec(t, "orphan", "exec sleep 1000")
	heard.stdout.says(t, "/tasks/exec-started")
	must(t, "kill containerd", n.Containerd.Kill())
	must(t, "kill exec", s.kill("orphan", 15, false))
	if got := s.ended(t, "orphan"); got != 143 {
		t.Errorf("exec ended with %d", got)
	}
	s.exec(t, "hungry", "exec tail /dev/zero") // the limit takes the whole container
	if got := s.ended(t, ""); got != 137 {
		t.Errorf("init ended with %d", got)
	}
	l, stop := listen(t, n)
	want := []string{
		"/godwit/kill orphan 0", "/tasks/exit orphan 143", "/tasks/exec-added hungry 0",
		"/tasks/exec-started hungry 0",
		"/tasks/oom vm 0", "/tasks/exit hungry 137", "/tasks/exit vm 137",
	}
	err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		if got := l.of("vm"); !slices.Equal(got, want) {
			return errors.New(cmp.Diff(want, got))
		}
		return nil
	})
	stop()
	if err != nil {
		t.Errorf("events (-want +got): %v", err)
	}
	if f := s.figures(t); f.usage == 0 || f.cpu == 0 || f.oomKills == 0 {
		t.Errorf("figures after the end: %+v", f)
	}
	must(t, "start containerd", n.StartContainerd(t.Context()))
	running(t, n, "vm", "STOPPED")
	events := watchEvents(t, n)
	ctr(t, n, nil, "task", "delete", "vm").want(t, result{"", "exit code 137", 0})
	n.Ctr(t, "container", "rm", "vm")
	checkEvents(t, events, "vm", "/tasks/delete") // and not what was told before
}
