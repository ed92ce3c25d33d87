package shim

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/rampool"
	"godwit.dev/godwit/shim/stdio"
)

// Each table leads from new to deleted, every state in it is reachable, and none but deleted
// is an end.
func TestTransitions(t *testing.T) {
	t.Run("VM", func(t *testing.T) { leads(t, transitions, New, Deleted) })
	t.Run("task", func(t *testing.T) { leads(t, taskTransitions, TaskNew, TaskDeleted) })
}

func leads[S ~string](t *testing.T, table map[S][]S, first, last S) {
	seen := map[S]bool{first: true}
	for queue := []S{first}; len(queue) > 0; queue = queue[1:] {
		for _, next := range table[queue[0]] {
			if !seen[next] {
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	for s, next := range table {
		if !seen[s] {
			t.Errorf("%s cannot be reached", s)
		}
		if len(next) == 0 && s != last {
			t.Errorf("%s is a dead end", s)
		}
		for _, n := range next {
			if _, ok := table[n]; !ok {
				t.Errorf("%s leads to the unknown %s", s, n)
			}
		}
	}
}

// Of all pairs of states those in the tables are taken, and all others are FailedPrecondition
// and leave the state as it is: of a VM, and of a task.
func TestAllPairs(t *testing.T) {
	vm := newVM(t.Context(), slog.Default(), nil, "ns", "vm", "vm")
	t.Run("VM", func(t *testing.T) { pairs(t, transitions, &vm.state, vm.setState) })
	t.Run("task", func(t *testing.T) { pairs(t, taskTransitions, &vm.owner.state, vm.owner.setState) })
}

func pairs[S ~string](t *testing.T, table map[S][]S, state *S, to func(S) error) {
	for from := range table {
		for next := range table {
			*state = from
			err := to(next)
			switch {
			case slices.Contains(table[from], next):
				if err != nil || *state != next {
					t.Errorf("%s to %s: %v, it is %s", from, next, err, *state)
				}
			case !errdefs.IsFailedPrecondition(err) || *state != from:
				t.Errorf("%s to %s: %v, it is %s; want failed precondition and no change", from, next, err, *state)
			}
		}
	}
}

// A task and its VM move together: containerd's status of one that was paused, or that an
// operation holds, is made of both.
func TestStatusOfBothTables(t *testing.T) {
	for _, c := range []struct {
		vm   State
		task TaskState
		want tasktypes.Status
	}{
		{Creating, TaskCreating, tasktypes.Status_CREATED}, {Ending, TaskCreated, tasktypes.Status_CREATED},
		{Starting, TaskStarting, tasktypes.Status_PAUSING}, {Running, TaskRunning, tasktypes.Status_RUNNING},
		{Pausing, TaskRunning, tasktypes.Status_PAUSING}, {Resuming, TaskRunning, tasktypes.Status_PAUSED},
		{Prepared, TaskRunning, tasktypes.Status_RUNNING}, {Deleting, TaskDeleting, tasktypes.Status_STOPPED},
	} {
		vm := bareVM(t, nil)
		vm.state, vm.owner.state = c.vm, c.task
		if got := vm.owner.status(vm.owner.init); got != c.want {
			t.Errorf("VM %s, task %s: %s, want %s", c.vm, c.task, got, c.want)
		}
	}
}

// A changing call that a state does not admit is FailedPrecondition and leaves the
// state as it is: a hold too, which no Resume and no Start ends, and a VM
// whose NICs are not there yet is not frozen.
func TestCallsByState(t *testing.T) {
	ctx := ctxNS(t)
	calls := map[string]func(*Service) error{
		"start":  func(s *Service) error { _, err := s.Start(ctx, &taskapi.StartRequest{ID: "vm"}); return err },
		"pause":  func(s *Service) error { _, err := s.Pause(ctx, &taskapi.PauseRequest{ID: "vm"}); return err },
		"resume": func(s *Service) error { _, err := s.Resume(ctx, &taskapi.ResumeRequest{ID: "vm"}); return err },
		"exec": func(s *Service) error {
			_, err := s.Exec(ctx, execRequest("e"))
			return err
		},
		"update": func(s *Service) error { _, err := s.Update(ctx, &taskapi.UpdateTaskRequest{ID: "vm"}); return err },
		"delete": func(s *Service) error { _, err := s.Delete(ctx, &taskapi.DeleteRequest{ID: "vm"}); return err },
		"capture": func(s *Service) error {
			m := &machineService{find: s.current}
			_, err := m.Capture(ctx, &machinev1.CaptureRequest{Ref: &machinev1.Ref{Operation: "o", Attempt: 1, Generation: 1},
				Repository: "r"})
			return err
		},
	}
	admitted := map[State][]string{
		Created:  {"start", "delete", "update"},
		Running:  {"pause", "exec", "update", "capture"},
		Paused:   {"resume"},
		Captured: {}, Prepared: {}, Starting: {}, Aborting: {}, Releasing: {},
	}
	for state, ok := range admitted {
		for name, call := range calls {
			if slices.Contains(ok, name) {
				continue
			}
			t.Run(string(state)+"/"+name, func(t *testing.T) {
				w := newWorld(t)
				w.must("create", w.create())
				vm, _ := w.service.current()
				vm.mu.Lock()
				vm.state = state
				vm.mu.Unlock()
				if err := errgrpc.ToNative(call(w.service)); !errdefs.IsFailedPrecondition(err) {
					t.Errorf("= %v, want failed precondition", err)
				}
				if !vm.inState(state) {
					t.Errorf("state is %s afterwards", vm.state)
				}
			})
		}
	}
}

// Admission goes by declared sizes and says both numbers.
func TestAdmission(t *testing.T) {
	dir := t.TempDir()
	total, _, _, err := rampool.Use(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := reserveRAM(filepath.Join(dir, "a"), total/2, 0); err != nil {
		t.Fatal(err)
	}
	err = reserveRAM(filepath.Join(dir, "b"), total, 0)
	if !errdefs.IsResourceExhausted(err) {
		t.Fatalf("reserve over the size = %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "b")); err == nil {
		t.Error("a refused VM has a RAM file")
	}
}

// An abort ends a VM that was brought here and never ran; the attempt is fenced.
func TestAbortOfAVMThatNeverRan(t *testing.T) {
	w := newWorld(t).asleep()
	w.must("create", w.create())
	vm, _ := w.service.current()
	j := vm.journal.Load()
	_, err := w.machineService().Abort(context.Background(),
		&machinev1.AbortRequest{Ref: &machinev1.Ref{Operation: j.Operation, Attempt: j.Attempt}})
	w.must("abort", err)
	r, err := w.service.Wait(ctxNS(t), &taskapi.WaitRequest{ID: "vm"})
	if err != nil || r.GetExitStatus() != killed {
		t.Errorf("wait = %v, %v", r, err)
	}
	if _, err := w.service.Kill(ctxNS(t), &taskapi.KillRequest{ID: "vm", Signal: 9}); !errdefs.IsNotFound(
		errgrpc.ToNative(err)) {
		t.Errorf("kill = %v, want not found", err)
	}
	if err := errgrpc.ToNative(w.start()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("start = %v, want failed precondition", err)
	}
	w.must("delete", w.delete())
	w.nothingLeft()
}

// containerd's restart monitor kills a task that is CREATED where it should run, and looks
// each ten seconds, so that it meets many a boot. It knows three states in which a task is
// left alone.
func TestTheRestartMonitorLeavesAStartAlone(t *testing.T) {
	vm := bareVM(t, nil)
	for state, want := range map[TaskState]tasktypes.Status{
		TaskCreated: tasktypes.Status_CREATED, TaskStarting: tasktypes.Status_PAUSING, TaskRunning: tasktypes.Status_RUNNING,
		TaskStopped: tasktypes.Status_STOPPED,
	} {
		vm.owner.state = state
		if got := vm.owner.reportedStatus(); got != want {
			t.Errorf("%s is told as %s, want %s", state, got, want)
		}
	}
}

// bareVM has an agent and an init, and nothing else.
func bareVM(t *testing.T, agent Agent) *VM {
	vm := newVM(t.Context(), slog.Default(), nil, "ns", "vm", "vm")
	vm.host = &Host{Config: config.Default()}
	vm.agent, vm.owner.init = agent, vm.owner.newProcess("", stdio.URIs{}, nil)
	return vm
}
