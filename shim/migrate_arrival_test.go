package shim

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
)

// The destination is CREATED and executes nothing until the controller has committed; a
// Start before that is refused and costs nothing. The stranger who connects first costs
// nothing either. containerd hears of its task once each.
func TestArrival(t *testing.T) {
	w := coming(t)
	w.store.stranger, w.store.early = 1, make(chan struct{})
	w.must("create", w.receive())
	w.connect() // a stranger
	w.connect()
	if err := errgrpc.ToNative(w.start()); !errdefs.IsFailedPrecondition(err) || w.phase() != journal.Incoming {
		t.Fatalf("start while pages come: %v, %s", err, w.phase())
	}
	close(w.store.early)
	if !w.arrived() {
		t.Fatalf("phase %s", w.phase())
	}
	if err := errgrpc.ToNative(w.start()); !errdefs.IsFailedPrecondition(err) || w.phase() != journal.Ready ||
		w.machine.running() || w.net.up {
		t.Fatalf("start before the commit: %v, %s", err, w.phase())
	}
	in, err := w.machineService().Incoming(t.Context(), &machinev1.IncomingRequest{Ref: w.ref()})
	if err != nil || in.GetDigest() != streamDigest {
		t.Errorf("incoming %v, %v", in, err)
	}
	w.commit()
	vm, _ := w.service.current()
	w.uses("start", vm, w.start)
	w.must("start again", w.start())
	if j := vm.journal.Load(); j.Phase != journal.Own || j.Generation != w.records.rec.GetGeneration() ||
		!w.machine.running() || !w.net.up {
		t.Errorf("journal %+v", j)
	}
	var resume journal.Resume
	w.must("resume", json.Unmarshal(w.store.resume, &resume))
	w.agent.exit("") <- 3
	if status := w.wait(""); status != 3 {
		t.Errorf("exit status %d", status)
	}
	w.must("delete", w.delete())
	want := []string{"/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"}
	if !eventually(func() bool { return len(w.events.all()) >= len(want) }) || !slices.Equal(w.events.all(), want) {
		t.Errorf("events %v", w.events.all())
	}
	w.nothingLeft()
}

// Whatever fails at the destination, the VM has not run there and never will: the attempt
// is fenced, the task ends with 137 or was never made, and Delete leaves nothing.
func TestArrivalFailsAtEachCall(t *testing.T) {
	fails := func(w *world) error {
		if err := w.receive(); err != nil {
			return err
		}
		w.connect()
		if w.arrived() {
			return nil
		}
		if status := w.wait(""); status != killed {
			t.Errorf("%s failed: exit status %d", w.fired(), status)
		}
		if w.phase() != journal.Fenced {
			t.Errorf("%s failed: journal %s", w.fired(), w.phase())
		}
		w.arm(0)
		w.must("delete", w.delete())
		return errFake
	}
	for n := 1; ; n++ {
		w := coming(t)
		w.arm(n)
		err := fails(w)
		name := w.fired()
		w.arm(0)
		if name == "" && err == nil {
			w.must("kill", w.kill("", 9))
			w.must("delete", w.delete())
			w.nothingLeft()
			return
		}
		if err == nil {
			t.Logf("%s failed, and nothing needed it", name)
			continue
		}
		w.nothingLeft()
	}
}

// An arrival that is given up at any time is fenced, and nothing stays of it.
func TestArrivalIsGivenUp(t *testing.T) {
	for name, end := range map[string]func(*world) error{
		"abort": func(w *world) error {
			_, err := w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
			return err
		},
		"kill":   func(w *world) error { return w.kill("", 9) },
		"delete": func(w *world) error { return w.delete() },
		"dies": func(w *world) error {
			if w.machine == nil {
				return w.kill("", 9)
			}
			w.machine.powerOff()
			return nil
		},
	} {
		for _, when := range []string{"before it comes", "while it comes", "ready"} {
			t.Run(name+" "+when, func(t *testing.T) {
				w := coming(t)
				if when == "while it comes" {
					w.store.early = make(chan struct{})
				}
				w.must("create", w.receive())
				if when != "before it comes" {
					w.connect()
				}
				if when == "ready" && !w.arrived() {
					t.Fatalf("phase %s", w.phase())
				}
				if name == "dies" && when != "ready" {
					return // the VMM's end is seen when its state is loaded
				}
				w.must(name, end(w))
				if name != "delete" {
					w.wait("")
					w.must("delete", w.delete())
				}
				if w.phase() != journal.Fenced {
					t.Errorf("journal %s", w.phase())
				}
				w.nothingLeft()
				w.restart()
				if err := w.receive(); !errdefs.IsFailedPrecondition(err) {
					t.Errorf("the attempt once more: %v", err)
				}
			})
		}
	}
}
