package shim

import (
	"context"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// probes are the calls that may come at any time, also before there is a task.
func probes(w *world) map[string]func() error {
	s, ctx := w.service, ctxNS(w.t)
	return map[string]func() error{
		"state":  func() error { _, err := s.State(ctx, &taskapi.StateRequest{ID: "vm"}); return err },
		"pids":   func() error { _, err := s.Pids(ctx, &taskapi.PidsRequest{ID: "vm"}); return err },
		"stats":  func() error { _, err := s.Stats(ctx, &taskapi.StatsRequest{ID: "vm"}); return err },
		"kill":   func() error { _, err := s.Kill(ctx, &taskapi.KillRequest{ID: "vm", Signal: 9}); return err },
		"resize": func() error { _, err := s.ResizePty(ctx, &taskapi.ResizePtyRequest{ID: "vm"}); return err },
		"close":  func() error { _, err := s.CloseIO(ctx, &taskapi.CloseIORequest{ID: "vm", Stdin: true}); return err },
		"wait":   func() error { _, err := s.Wait(ctx, &taskapi.WaitRequest{ID: "vm"}); return err },
		"query": func() error {
			_, err := w.machineService().Query(ctx, &machinev1.QueryRequest{})
			return err
		},
	}
}

// While Create asks the record and the registry there is nothing to answer from: every
// call but Connect says so, none takes the shim down.
func TestCallsDuringCreate(t *testing.T) {
	for _, point := range []string{"ensure", "open snapshot"} {
		w := newWorld(t).asleep()
		asked := false
		w.at(point, func() error {
			asked = true
			for name, call := range probes(w) {
				if err := errgrpc.ToNative(call()); !errdefs.IsNotFound(err) {
					t.Errorf("%s: %s = %v, want not found", point, name, err)
				}
			}
			if _, err := w.service.Connect(ctxNS(t), &taskapi.ConnectRequest{ID: "vm"}); err != nil {
				t.Errorf("%s: connect = %v", point, err)
			}
			_, err := w.service.Create(ctxNS(t), w.bundle())
			if err := errgrpc.ToNative(err); !errdefs.IsAlreadyExists(err) {
				t.Errorf("%s: second create = %v", point, err)
			}
			return nil
		})
		w.must("create", w.create())
		if !asked {
			t.Errorf("no %s", point)
		}
	}
}

// Once the journal stands, the task is there, and has no figures yet.
func TestCallsDuringFill(t *testing.T) {
	w := newWorld(t).asleep()
	w.at("fill", func() error {
		all := probes(w)
		for _, name := range []string{"stats", "kill"} {
			if err := errgrpc.ToNative(all[name]()); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s = %v, want failed precondition", name, err)
			}
		}
		for _, name := range []string{"state", "pids", "resize", "query"} {
			if err := all[name](); err != nil {
				t.Errorf("%s = %v", name, err)
			}
		}
		return nil
	})
	w.must("create", w.create())
}

// A shim that is asked to leave while its Create fails does leave.
func TestShutdownDuringAFailingCreate(t *testing.T) {
	w := newWorld(t)
	w.at("prepare disks", func() error {
		_, err := w.service.Shutdown(context.Background(), &taskapi.ShutdownRequest{ID: "vm"})
		w.must("shutdown", err)
		return errFake
	})
	if err := w.create(); err == nil {
		t.Fatal("create succeeded")
	}
	if !eventually(func() bool { return w.service.life.Err() != nil }) {
		t.Error("the shim stays")
	}
}

// A containerd that was killed in a Delete finds the shim when it starts again, perhaps still in
// that Delete: it hears of no pids, so that it ends the shim.
func TestPidsDuringADelete(t *testing.T) {
	w := newWorld(t)
	w.must("create", w.create())
	reached, open := make(chan struct{}), make(chan struct{})
	w.at("end ownership", func() error { close(reached); <-open; return nil })
	deleted, asked := make(chan error, 1), make(chan error, 1)
	go func() { deleted <- w.delete() }()
	<-reached
	go func() {
		_, err := w.service.Pids(ctxNS(t), &taskapi.PidsRequest{ID: "vm"})
		asked <- err
	}()
	select {
	case err := <-asked:
		t.Errorf("in a delete: %v", err)
		asked <- err
	case <-time.After(50 * time.Millisecond):
	}
	close(open)
	w.must("delete", <-deleted)
	if err := errgrpc.ToNative(<-asked); !errdefs.IsNotFound(err) {
		t.Errorf("after it: %v", err)
	}
}
