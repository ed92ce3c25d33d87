package shim

import (
	"context"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/journal"
)

// A containerd that goes away in the middle of a wake's Start ends the Start before the record has committed the VM
// here. After that it costs the VM nothing.
func TestCallerGoesDuringResume(t *testing.T) {
	for point, runs := range map[string]bool{"load state": false, "commit": true, "resume": true, "restored": true,
		"finish": true} {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t).asleep()
			w.must("create", w.create())
			vm, _ := w.service.current()
			ctx, cancel := context.WithCancel(ctxNS(t))
			w.at(point, func() error { cancel(); return nil })
			_, err := w.service.Start(ctx, &taskapi.StartRequest{ID: "vm"})
			w.at(point, nil)
			if runs != (err == nil) || runs != vm.inState(Running) {
				t.Fatalf("start = %v, VM is %s", err, vm.state)
			}
			if !runs {
				w.must("delete", w.delete())
				w.nothingLeft()
			}
			if asleep := w.records.rec.GetOwner().GetDigest() != ""; asleep == runs {
				t.Errorf("record is %v", w.records.rec)
			}
		})
	}
}

// A Kill during Start ends the task whenever it comes; one in the very last step too.
func TestKillDuringStart(t *testing.T) {
	for _, point := range []string{"attach network", "resume", "setup", "start process"} {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t)
			w.must("create", w.create())
			w.at(point, func() error {
				_, err := w.service.Kill(ctxNS(t), &taskapi.KillRequest{ID: "vm", Signal: 9})
				return err
			})
			if err := w.start(); err == nil {
				t.Error("start of a killed task succeeded")
			}
			if vm, _ := w.service.current(); !vm.inState(Stopped) {
				t.Errorf("VM is %s", vm.state)
			}
			w.must("delete", w.delete())
			w.nothingLeft()
		})
	}
}

// The end of a created task and its Start exclude each other: the second one that comes while the first is at work gets
// a refusal, and nothing runs under a fence.
func TestEndOfACreatedTaskAgainstStart(t *testing.T) {
	for name, end := range map[string]func(*world) error{
		"kill": func(w *world) error {
			_, err := w.service.Kill(ctxNS(w.t), &taskapi.KillRequest{ID: "vm", Signal: 9})
			return err
		},
		"delete": (*world).delete,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).asleep()
			w.must("create", w.create())
			vm, _ := w.service.current()
			tried := false
			w.at("advance", func() error { // the fence is written, the record being told
				tried = true
				if err := errgrpc.ToNative(w.start()); !errdefs.IsFailedPrecondition(err) {
					t.Errorf("start = %v, want failed precondition", err)
				}
				return nil
			})
			w.must(name, end(w))
			if !tried || w.machine.running() || vm.inState(Running) {
				t.Errorf("tried %v, VM is %s", tried, vm.state)
			}
			if w.records.phase != nodev1.Phase_PHASE_FAILED {
				t.Errorf("operation ended as %s", w.records.phase)
			}
		})
	}
}

// A fence that got in between keeps the VM from running, whatever the record says.
func TestFencedDuringStart(t *testing.T) {
	w := newWorld(t).asleep()
	w.must("create", w.create())
	vm, _ := w.service.current()
	w.at("commit", func() error { return vm.write(func(j *journal.Journal) { j.Phase = journal.Fenced }) })
	if err := errgrpc.ToNative(w.start()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("start = %v, want failed precondition", err)
	}
	if w.machine.running() || vm.journal.Load().Phase != journal.Fenced || w.records.rec.GetOwner().GetDigest() == "" {
		t.Errorf("journal %s, record %v", vm.journal.Load().Phase, w.records.rec)
	}
}
