package shim

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/journal"
)

// A VM whose record has gone on without its node ends, and no other one: the shim reads the record itself, and what it
// cannot read ends nothing (I1). Its interfaces stay silent, also when another process gives them back: its addresses
// are in use.
func TestEndOfAVMWhoseRecordWentOn(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(w *world)
		refused func(error) bool
	}{
		"elsewhere": {func(w *world) { w.records.rec.Owner = &nodev1.Owner{Node: "b"} }, nil},
		"asleep":    {func(w *world) { w.records.rec.Owner = &nodev1.Owner{Digest: "sha256:aa"} }, nil},
		"in a capture": {func(w *world) {
			_, err := w.capture()
			w.must("capture", err)
			w.records.rec.Owner, w.records.rec.Operation = &nodev1.Owner{Node: "b"}, nil
		}, nil},
		"unread": {func(w *world) {
			w.faults.at("get", func() error { return errdefs.ErrUnavailable })
		}, errdefs.IsUnavailable},
		"its own": {func(w *world) { w.records.rec.Owner = &nodev1.Owner{Node: "a"} }, errdefs.IsFailedPrecondition},
		"another VM's": {func(w *world) {
			w.records.rec.Owner, w.records.rec.Uid = &nodev1.Owner{Node: "b"}, "other"
		}, errdefs.IsFailedPrecondition},
		"settled after a copy, under a lower number": {func(w *world) {
			w.records.rec.Owner, w.records.rec.Incarnation = &nodev1.Owner{Node: "b"}, 1_800_000_000
			vm, _ := w.service.current()
			w.must("claim", vm.write(func(j *journal.Journal) { j.Generation += 2 }))
		}, nil},
		"nobody can say whose it is": {func(w *world) {
			w.records.rec.Owner, w.records.rec.Rivals = &nodev1.Owner{Node: "b"}, true
		}, errdefs.IsFailedPrecondition},
		"late order": {func(w *world) {
			w.records.rec.Owner = &nodev1.Owner{Node: "b"}
			vm, _ := w.service.current()
			w.must("claim", vm.write(func(j *journal.Journal) { j.Generation += 2 }))
		}, errdefs.IsFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			tt.change(w)
			w.records.rec.Generation++
			_, err := w.machineService().End(t.Context(), &machinev1.EndRequest{Generation: w.records.rec.GetGeneration(),
				Reason: "node b owns it"})
			err = errgrpc.ToNative(err)
			vm, _ := w.service.current()
			if tt.refused != nil {
				if !tt.refused(err) || vm.inState(Stopped) {
					t.Errorf("end = %v, VM is %s", err, vm.state)
				}
				return
			}
			w.must("end", err)
			<-vm.owner.init.done
			if !vm.inState(Stopped) {
				t.Errorf("VM is %s", vm.state)
			}
			j, err := journal.Read(vm.dir)
			w.must("read journal", err)
			w.must("delete", w.delete())
			if w.net.left == "" || w.net.detached != "" {
				t.Errorf("delete: left in silence is %q, given back %q", w.net.left, w.net.detached)
			}
			w.net.left = ""
			w.must("reclaim after a dead shim", reclaim(t.Context(), w.host(), filepath.Join(t.TempDir(), "vm"),
				&journal.Journal{Phase: j.Phase, Reassigned: j.Reassigned, Resources: journal.Resources{NetNS: "/run/netns/web",
					Links: j.Links}}))
			if w.net.left == "" || w.net.detached != "" {
				t.Errorf("reclaim: left in silence is %q, given back %q", w.net.left, w.net.detached)
			}
		})
	}
}

// endLost is the order to end a VM that node b has by now.
func (w *world) endLost() error {
	w.records.rec.Owner = &nodev1.Owner{Node: "b"}
	_, err := w.machineService().End(w.t.Context(), &machinev1.EndRequest{Generation: w.records.rec.GetGeneration()})
	return errgrpc.ToNative(err)
}

// A VM that starts while it is another node's is not called ended before its Start is over: the VMM may yet come.
func TestEndOfALostVMThatStarts(t *testing.T) {
	w := newWorld(t)
	w.must("create", w.create())
	vm, _ := w.service.current()
	aborted, ended := make(chan struct{}), make(chan error, 1)
	w.at("start VMM", func() error {
		vm.mu.Lock()
		vm.owner.abortStart = sync.OnceFunc(func() { close(aborted) }) // the Start sees it late
		vm.mu.Unlock()
		w.records.rec.Generation++
		go func() { ended <- w.endLost() }()
		select {
		case <-aborted:
		case err := <-ended:
			t.Errorf("the VM was called ended (%v) while its VMM starts", err)
			ended <- err
		}
		return nil
	})
	err := w.start()
	w.must("end", <-ended)
	if w.machine.running() || !vm.inState(Stopped) {
		t.Errorf("start = %v, VM is %s, VMM runs: %t", err, vm.state, w.machine.running())
	}
	w.must("delete", w.delete())
}

// atLog runs when something is logged under that message.
type atLog struct {
	slog.Handler
	message string
	do      func()
}

func (l *atLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *atLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == l.message {
		l.do()
	}
	return nil
}

// A Start that comes after the look at a created VM ends as well.
func TestEndOfALostVMThatHasStarted(t *testing.T) {
	w := newWorld(t)
	w.must("create", w.create())
	vm, _ := w.service.current()
	own := w.records.rec.GetOwner()
	w.records.rec.Generation++
	vm.log = slog.New(&atLog{Handler: slog.DiscardHandler, message: "end a VM that is somebody else's by now", do: func() {
		w.records.rec.Owner = own
		w.records.rec.Generation--
		w.must("start", w.start())
		w.records.rec.Generation++
	}})
	w.must("end", w.endLost())
	if w.machine.running() || !vm.inState(Stopped) {
		t.Errorf("VM is %s, VMM runs: %t", vm.state, w.machine.running())
	}
	w.must("delete", w.delete())
}

// What is being made, or taken over, has no end yet: the order comes again.
func TestEndOfALostVMThatIsMade(t *testing.T) {
	vm := bareVM(t, nil)
	for _, state := range []State{New, Creating, Starting} {
		vm.state = state
		if err := vm.ending.fromAnyState(t.Context()); !errdefs.IsUnavailable(err) {
			t.Errorf("end of a VM that is %s: %v", state, err)
		}
	}
	vm.owner.startOver, vm.owner.abortStart = make(chan struct{}), func() {}
	if err := vm.ending.fromAnyState(expired(t)); !errdefs.IsUnavailable(err) {
		t.Errorf("end of a VM whose start takes long: %v", err)
	}
}
