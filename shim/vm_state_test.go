package shim

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/shim/rampool"
)

// The table leads from New to Deleted, every state in it is reachable, and none but
// Deleted is an end.
func TestTransitions(t *testing.T) {
	seen := map[State]bool{New: true}
	for queue := []State{New}; len(queue) > 0; queue = queue[1:] {
		for _, next := range transitions[queue[0]] {
			if !seen[next] {
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	for s, next := range transitions {
		if !seen[s] {
			t.Errorf("%s cannot be reached", s)
		}
		if len(next) == 0 && s != Deleted {
			t.Errorf("%s is a dead end", s)
		}
		for _, n := range next {
			if _, ok := transitions[n]; !ok {
				t.Errorf("%s leads to the unknown %s", s, n)
			}
		}
	}
}

// A changing call that a state does not admit is FailedPrecondition and leaves the
// state as it is (H02, H03): a hold too, which no Resume and no Start ends (S0-20), and a VM
// whose NICs are not there yet is not frozen (H31).
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
			m := &machineService{find: s.the}
			_, err := m.Capture(ctx, &machinev1.CaptureRequest{Ref: &machinev1.Ref{Operation: "o", Attempt: 1, Generation: 1}, Repository: "r"})
			return err
		},
	}
	admitted := map[State][]string{
		Created:  {"start", "delete", "update"},
		Running:  {"pause", "exec", "update", "capture"},
		Paused:   {"resume"},
		Captured: {}, Voted: {}, Starting: {}, Aborting: {}, Releasing: {},
	}
	for state, ok := range admitted {
		for name, call := range calls {
			if slices.Contains(ok, name) {
				continue
			}
			t.Run(string(state)+"/"+name, func(t *testing.T) {
				w := newWorld(t)
				w.must("create", w.create())
				vm, _ := w.service.the()
				vm.mu.Lock()
				vm.state = state
				vm.mu.Unlock()
				if err := errgrpc.ToNative(call(w.service)); !errdefs.IsFailedPrecondition(err) {
					t.Errorf("= %v, want failed precondition", err)
				}
				if !vm.is(state) {
					t.Errorf("state is %s afterwards", vm.state)
				}
			})
		}
	}
}

// S1-23: what write has answered for is there after a crash; a half-written successor
// is not looked at.
func TestJournalSurvivesACrash(t *testing.T) {
	dir := t.TempDir()
	if _, err := loadJournal(dir); !errdefs.IsNotFound(err) {
		t.Fatalf("load of nothing = %v", err)
	}
	if err := (&Journal{Phase: Prepared, Operation: "o"}).store(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(durable.Unfinished(journalFile(dir)), []byte(`{"version":1,"phase":"OW`), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := loadJournal(dir)
	if err != nil || j.Phase != Prepared || j.Operation != "o" {
		t.Errorf("load = %+v, %v", j, err)
	}
	if err := os.WriteFile(journalFile(dir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadJournal(dir); !errdefs.IsDataLoss(err) {
		t.Errorf("load of a torn journal = %v, want data loss", err)
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

// H20: an abort ends a VM that was brought here and never ran; the attempt is fenced.
func TestAbortOfAVMThatNeverRan(t *testing.T) {
	w := newWorld(t).asleep()
	w.must("create", w.create())
	vm, _ := w.service.the()
	j := vm.noted()
	_, err := w.machineService().Abort(context.Background(), &machinev1.AbortRequest{Ref: &machinev1.Ref{Operation: j.Operation, Attempt: j.Attempt}})
	w.must("abort", err)
	r, err := w.service.Wait(ctxNS(t), &taskapi.WaitRequest{ID: "vm"})
	if err != nil || r.GetExitStatus() != killed {
		t.Errorf("wait = %v, %v", r, err)
	}
	if _, err := w.service.Kill(ctxNS(t), &taskapi.KillRequest{ID: "vm", Signal: 9}); !errdefs.IsNotFound(errgrpc.ToNative(err)) {
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
	for state, want := range map[State]tasktypes.Status{
		Created: tasktypes.Status_CREATED, Starting: tasktypes.Status_PAUSING, Running: tasktypes.Status_RUNNING,
		Capturing: tasktypes.Status_RUNNING, Stopped: tasktypes.Status_STOPPED,
	} {
		if got := state.status(); got != want {
			t.Errorf("%s is told as %s, want %s", state, got, want)
		}
	}
}
