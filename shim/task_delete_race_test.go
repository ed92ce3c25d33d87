package shim

import (
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
)

// waits fails the test if a call is over while another one holds it up.
func (w *world) waits(what string, done <-chan error) {
	w.t.Helper()
	time.Sleep(50 * time.Millisecond)
	if len(done) > 0 {
		w.t.Errorf("%s does not wait", what)
	}
}

// heldDelete holds the Delete of a task up where it frees things. VM is of `ctr run`, web of a pod.
func heldDelete(t *testing.T, id string) (w *world, deleted <-chan error, letGo func()) {
	w = newWorld(t)
	point := "end ownership"
	if id == "vm" {
		w.must("create", w.create())
	} else {
		w.runningPod(id)
		w.must("kill", w.killTask(id))
		w.waitFor(id)
		point = "remove container"
	}
	reached, letGo := w.held(point)
	deleted = begun(func() error { return w.deleteTask(id) })
	<-reached
	return w, deleted, letGo
}

// TestDeleteDuringADelete: two clients remove one container at a time, as `nerdctl rm -f` and the restart monitor do.
// The second Delete waits for the first one, and does not find the task any more. That is no failure for a client.
func TestDeleteDuringADelete(t *testing.T) {
	for _, id := range []string{"vm", "web"} {
		t.Run(id, func(t *testing.T) {
			w, first, letGo := heldDelete(t, id)
			second := begun(func() error { return w.deleteTask(id) })
			w.waits("the second delete", second)
			letGo()
			w.must("delete", <-first)
			if err := errgrpc.ToNative(<-second); !errdefs.IsNotFound(err) {
				t.Errorf("the second delete: %v, want not found", err)
			}
		})
	}
}

// TestDeleteAfterAFailedDelete: the first Delete fails. The one that has waited for it frees the container.
func TestDeleteAfterAFailedDelete(t *testing.T) {
	w := newWorld(t).runningPod("web")
	w.must("kill", w.killTask("web"))
	w.waitFor("web")
	reached, open := make(chan struct{}, 1), make(chan struct{})
	w.at("remove container", func() error {
		w.at("remove container", func() error { return nil })
		reached <- struct{}{}
		<-open
		return errFake
	})
	first := begun(func() error { return w.deleteTask("web") })
	<-reached
	second := begun(func() error { return w.deleteTask("web") })
	w.waits("the second delete", second)
	close(open)
	if err := <-first; err == nil {
		t.Error("a delete succeeded that freed nothing")
	}
	w.must("second delete", <-second)
	if got := w.agent.has(); len(got) != 0 {
		t.Errorf("the guest has %q", got)
	}
}

// TestDeleteDuringAStart: a Delete waits for the Start that has begun. It frees the task of one that fails, and refuses
// the task of one that succeeds.
func TestDeleteDuringAStart(t *testing.T) {
	for _, id := range []string{"vm", "web"} {
		for _, starts := range []bool{true, false} {
			t.Run(id, func(t *testing.T) {
				w := newWorld(t)
				if id == "vm" {
					w.must("create", w.create())
				} else {
					w.must("create", w.runningPod().createMember(id, "alpine"))
				}
				reached, letGo := w.heldStart(starts)
				started := begun(func() error { return w.startTask(id) })
				<-reached
				deleted := begun(func() error { return w.deleteTask(id) })
				w.waits("delete", deleted)
				letGo()
				if err := <-started; starts != (err == nil) {
					t.Errorf("start: %v", err)
				}
				err := errgrpc.ToNative(<-deleted)
				if starts && !errdefs.IsFailedPrecondition(err) || !starts && err != nil {
					t.Errorf("started %t, and delete: %v", starts, err)
				}
			})
		}
	}
}

// TestCallsDuringADelete: what only asks is answered at once. What would change the task is refused.
func TestCallsDuringADelete(t *testing.T) {
	for _, id := range []string{"vm", "web"} {
		t.Run(id, func(t *testing.T) {
			w, deleted, letGo := heldDelete(t, id)
			ctx := ctxNS(t)
			if got := w.stateOf(id); got != tasktypes.Status_STOPPED {
				t.Errorf("state is %s", got)
			}
			w.waitFor(id)
			if _, err := w.service.Stats(ctx, &taskapi.StatsRequest{ID: id}); err != nil {
				t.Errorf("stats: %v", err)
			}
			if _, err := w.service.Connect(ctx, &taskapi.ConnectRequest{ID: id}); err != nil {
				t.Errorf("connect: %v", err)
			}
			if err := errgrpc.ToNative(w.killTask(id)); !errdefs.IsNotFound(err) {
				t.Errorf("kill: %v, want not found", err)
			}
			exec := execRequest("e")
			exec.ID = id
			for name, call := range map[string]func() error{
				"start":  func() error { return w.startTask(id) },
				"exec":   func() error { _, err := w.service.Exec(ctx, exec); return err },
				"pause":  func() error { _, err := w.service.Pause(ctx, &taskapi.PauseRequest{ID: id}); return err },
				"resume": func() error { _, err := w.service.Resume(ctx, &taskapi.ResumeRequest{ID: id}); return err },
				"update": func() error { _, err := w.service.Update(ctx, &taskapi.UpdateTaskRequest{ID: id}); return err },
			} {
				if err := call(); err == nil {
					t.Errorf("%s of a task that is being deleted succeeded", name)
				}
			}
			pids := begun(func() error { _, err := w.service.Pids(ctx, &taskapi.PidsRequest{ID: id}); return err })
			w.waits("pids", pids) // of a containerd that was started meanwhile: it keeps a task that has pids
			letGo()
			w.must("delete", <-deleted)
			if err := errgrpc.ToNative(<-pids); !errdefs.IsNotFound(err) {
				t.Errorf("pids: %v, want not found", err)
			}
		})
	}
}

// TestCallsDuringAStart: what only asks is answered at once, and what is kept for the process is taken. What needs a
// task that runs waits for the Start, and has it then. Each finds no task that runs if the Start fails.
func TestCallsDuringAStart(t *testing.T) {
	for _, id := range []string{"vm", "web"} {
		for _, starts := range []bool{true, false} {
			t.Run(id, func(t *testing.T) {
				w := newWorld(t)
				status := tasktypes.Status_PAUSING
				if id == "vm" {
					w.must("create", w.create())
				} else {
					status = tasktypes.Status_RUNNING
					w.must("create", w.runningPod().createMember(id, "alpine"))
				}
				reached, letGo := w.heldStart(starts)
				started := begun(func() error { return w.startTask(id) })
				<-reached
				ctx := ctxNS(t)
				if got := w.stateOf(id); got != status {
					t.Errorf("state is %s", got)
				}
				for name, call := range map[string]func() error{
					"stats":   func() error { _, err := w.service.Stats(ctx, &taskapi.StatsRequest{ID: id}); return err },
					"connect": func() error { _, err := w.service.Connect(ctx, &taskapi.ConnectRequest{ID: id}); return err },
					"pids":    func() error { _, err := w.service.Pids(ctx, &taskapi.PidsRequest{ID: id}); return err },
					"resize": func() error {
						_, err := w.service.ResizePty(ctx, &taskapi.ResizePtyRequest{ID: id, Width: 80, Height: 25})
						return err
					},
					"close stdin": func() error {
						_, err := w.service.CloseIO(ctx, &taskapi.CloseIORequest{ID: id, Stdin: true})
						return err
					},
				} {
					if err := call(); err != nil {
						t.Errorf("%s during a start: %v", name, err)
					}
				}
				exec := execRequest("e")
				exec.ID = id
				waiting := map[string]<-chan error{ // SIGWINCH, as a signal that ends the process would race with the others
					"exec": begun(func() error { _, err := w.service.Exec(ctx, exec); return err }),
					"update": begun(func() error {
						_, err := w.service.Update(ctx, &taskapi.UpdateTaskRequest{ID: id})
						return err
					}),
					"kill": begun(func() error {
						_, err := w.service.Kill(ctx, &taskapi.KillRequest{ID: id, Signal: uint32(unix.SIGWINCH)})
						return err
					}),
				}
				for name, done := range waiting {
					w.waits(name, done)
				}
				letGo()
				if err := <-started; starts != (err == nil) {
					t.Errorf("start: %v", err)
				}
				for name, done := range waiting {
					if err := <-done; starts != (err == nil) {
						t.Errorf("%s, and the start succeeds: %t: %v", name, starts, err)
					}
				}
			})
		}
	}
}

// heldStart holds the Start of a process up in the guest, and lets it succeed or fail.
func (w *world) heldStart(starts bool) (reached <-chan struct{}, letGo func()) {
	at, open := make(chan struct{}), make(chan struct{})
	w.at("start process", func() error {
		w.at("start process", nil)
		close(at)
		<-open
		if starts {
			return nil
		}
		return errFake
	})
	return at, func() { close(open) }
}
