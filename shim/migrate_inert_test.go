package shim

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/vmm"
)

// A VM that has come and is not this node's yet is inert: no call makes it run, none is
// obeyed that would change it, and those that only ask answer.
func TestArrivalIsInert(t *testing.T) {
	w := coming(t)
	w.must("create", w.receive())
	w.connect()
	if !w.arrived() {
		t.Fatalf("phase %s", w.phase())
	}
	s, m, ctx := w.service, w.machineService(), ctxNS(t)
	for name, call := range map[string]func() error{
		"start":  w.start,
		"pause":  func() error { _, err := s.Pause(ctx, &taskapi.PauseRequest{ID: "vm"}); return err },
		"resume": func() error { _, err := s.Resume(ctx, &taskapi.ResumeRequest{ID: "vm"}); return err },
		"exec":   func() error { _, err := s.Exec(ctx, execRequest("e")); return err },
		"update": func() error { _, err := s.Update(ctx, &taskapi.UpdateTaskRequest{ID: "vm"}); return err },
		"checkpoint": func() error {
			_, err := s.Checkpoint(ctx, &taskapi.CheckpointTaskRequest{ID: "vm", Path: t.TempDir()})
			return err
		},
		"capture": func() error { _, err := w.capture(); return err },
		"send":    func() error { _, err := w.send(); return err },
		"vote":    w.vote,
		"release": func() error {
			_, err := m.Release(ctx, &machinev1.ReleaseRequest{Ref: w.ref(), Digest: streamDigest})
			return err
		},
		"revert": func() error {
			_, err := m.Revert(ctx, &machinev1.RevertRequest{Ref: w.ref(), OwnerGeneration: 9})
			return err
		},
	} {
		if err := call(); !errdefs.IsFailedPrecondition(err) && !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
			t.Errorf("%s = %v, want failed precondition", name, err)
		}
		if vm, _ := w.service.current(); !vm.inState(Created) || w.machine.running() || w.net.up ||
			w.phase() != journal.Ready {
			t.Fatalf("%s: VM is %s, %s", name, vm.state, w.phase())
		}
	}
	if r, err := s.State(ctx, &taskapi.StateRequest{ID: "vm"}); err != nil || r.GetStatus().String() != "CREATED" {
		t.Errorf("state = %v, %v", r, err)
	}
	w.commit()
	w.must("start", w.start())
	if !w.machine.running() {
		t.Error("it does not run after the commit")
	}
}

// Whatever state a VM is in, nothing comes in its place under its name, and what its
// Create has bound (bundle, streams, namespace) stays bound.
func TestNothingTakesItsPlace(t *testing.T) {
	running := func(w *world) { w.running() }
	for name, prepare := range map[string]func(*world){
		"created": func(w *world) { w.must("create", w.create()) },
		"running": running,
		"paused": func(w *world) {
			running(w)
			_, err := w.service.Pause(ctxNS(w.t), &taskapi.PauseRequest{ID: "vm"})
			w.must("pause", err)
		},
		"captured": func(w *world) { running(w); _, err := w.capture(); w.must("capture", err) },
		"voted":    func(w *world) { running(w); _, err := w.capture(); w.must("capture", err); w.must("vote", w.vote()) },
		"stopped":  func(w *world) { running(w); w.must("kill", w.kill("", 9)); w.wait("") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			prepare(w)
			vm, _ := w.service.current()
			before, state, stdio := *vm.journal.Load(), vm.state, vm.owner.init.stdio
			w.open("b", "a")
			w.stream = &machinev1.Stream{Spec: []byte("{}"), Facts: []byte("{}"), Generation: w.records.rec.GetGeneration()}
			w.stdout = "/elsewhere"
			for what, err := range map[string]error{"a VM that comes": w.receive(), "a boot": errgrpc.ToNative(w.create())} {
				if !errdefs.IsAlreadyExists(err) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if after := vm.journal.Load(); !reflect.DeepEqual(before, *after) || !vm.inState(state) ||
				vm.owner.init.stdio != stdio {
				t.Errorf("journal %+v, was %+v; VM is %s", after, before, vm.state)
			}
		})
	}
}

// hardware is what a guest sees of a VMM's configuration.
func hardware(cfg vmm.Config) (disks []vmm.Disk, nics []vmm.NIC) {
	for _, d := range cfg.Disks {
		d.File = nil
		disks = append(disks, d)
	}
	for _, n := range cfg.NICs {
		n.Tap = nil
		nics = append(nics, n)
	}
	return disks, nics
}

// A VM's Spec travels unchanged, and its destination makes the same devices of it, each
// in its old slot, on files of its own: no file of the source is one of its.
// A build that fails there has changed nothing that the next attempt starts from.
func TestWhatComesIsBuiltFromItsSpec(t *testing.T) {
	source := moving(t)
	o, err := source.offer()
	source.must("offer", err)
	disks, nics := hardware(source.machine.cfg)
	if len(disks) == 0 || len(nics) == 0 {
		t.Fatalf("disks %v, NICs %v: nothing to compare", disks, nics)
	}
	for _, fails := range []bool{true, false} {
		w := from(t, source)
		if string(w.stream.GetSpec()) != string(o.GetSpec()) {
			t.Fatalf("offered %s, before %s", w.stream.GetSpec(), o.GetSpec())
		}
		if fails {
			w.at("start VMM", func() error { return errFake })
			w.must("create", w.receive())
			w.connect()
			if w.arrived() {
				t.Fatal("it came without a VMM")
			}
			w.wait("")
			w.must("delete", w.delete())
			w.nothingLeft()
			continue
		}
		w.must("arrive", w.arrive())
		gotDisks, gotNICs := hardware(w.machine.cfg)
		if !reflect.DeepEqual(disks, gotDisks) || !reflect.DeepEqual(nics, gotNICs) {
			t.Errorf("disks %v, NICs %v; at the source %v, %v", gotDisks, gotNICs, disks, nics)
		}
		vm, _ := w.service.current()
		was, err := source.service.current()
		w.must("find", err)
		var is, sent spec.Spec
		w.must("read", json.Unmarshal(o.GetSpec(), &sent))
		if is = *vm.spec(); !reflect.DeepEqual(is, sent) {
			t.Errorf("Spec %+v, sent %+v", is, sent)
		}
		own, theirs := vm.journal.Load(), was.journal.Load()
		for i, path := range append([]journal.Disk{{Path: own.RAM}}, own.Disks...) {
			other := append([]journal.Disk{{Path: theirs.RAM}}, theirs.Disks...)[i].Path
			a, errA := os.Stat(path.Path)
			b, errB := os.Stat(other)
			if errA != nil || errB != nil || os.SameFile(a, b) || !strings.HasPrefix(path.Path, w.cfg.StateDir) &&
				!strings.HasPrefix(path.Path, w.cfg.RAMDir) {
				t.Errorf("%s and %s: %v, %v", path.Path, other, errA, errB)
			}
		}
	}
}

// A source that hears nothing of its controller runs on at its deadline, unless it has
// voted.
func TestSilentController(t *testing.T) {
	for name, take := range map[string]func(*world) error{
		"captured": func(w *world) error { _, err := w.capture(); return err },
		"sent":     func(w *world) error { w.open("a", "b"); _, err := w.send(); return err },
	} {
		for _, votes := range []bool{false, true} {
			w := newWorld(t).running()
			w.must(name, take(w))
			vm, _ := w.service.current()
			vm.mu.Lock()
			c := vm.op.capture
			vm.mu.Unlock()
			if votes {
				w.must("vote", w.vote())
				if c.deadline.Stop() {
					t.Errorf("%s: its deadline goes on after the vote", name)
				}
				c.expire() // one that was about to fire
				if !vm.inState(Prepared) || vm.journal.Load().Phase != journal.Prepared || w.machine.running() {
					t.Errorf("%s: VM is %s, %s", name, vm.state, vm.journal.Load().Phase)
				}
				continue
			}
			if w.machine.running() || !c.deadline.Reset(time.Millisecond) {
				t.Errorf("%s: no deadline is set", name)
			}
			if !eventually(func() bool {
				return vm.inState(Running) && w.machine.running() && vm.journal.Load().Phase == journal.Own
			}) {
				t.Errorf("%s: VM is %s, %s", name, vm.state, vm.journal.Load().Phase)
			}
		}
	}
}

// A Create without an order to restore asks no registry, and works where none is configured. One with such an order
// fails there, names the digest and boots nothing.
func TestRegistryOfACreate(t *testing.T) {
	w := newWorld(t)
	asked := 0
	for _, call := range []string{"open snapshot", "fill"} {
		w.at(call, func() error { asked++; return errdefs.ErrFailedPrecondition })
	}
	w.running()
	if asked > 0 {
		t.Errorf("a boot asked the registry %d times", asked)
	}
	for _, call := range []string{"open snapshot", "fill"} {
		w.at(call, nil)
	}
	w = newWorld(t).asleep()
	w.at("open snapshot", func() error { asked++; return errdefs.ErrFailedPrecondition })
	err := errgrpc.ToNative(w.create())
	if !errdefs.IsFailedPrecondition(err) || asked != 1 || !strings.Contains(err.Error(), hexDigest) {
		t.Errorf("%v after %d questions", err, asked)
	}
	w.nothingLeft()
	if w.records.rec.GetOwner().GetDigest() == "" || w.records.rec.GetOperation() != nil {
		t.Errorf("record %v", w.records.rec)
	}
}
