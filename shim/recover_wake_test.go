package shim

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

// sleepers are VMs that wake in different ways.
var sleepers = map[string]func(*testing.T) *world{
	"recycles": func(t *testing.T) *world { return recycling(t).asleep() },
	"keeps":    func(t *testing.T) *world { return newWorld(t).asleep() },
	"readdressed": func(t *testing.T) *world {
		w := newWorld(t).asleep()
		w.links[0].NIC.Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.77/24")}
		return w
	},
}

// dies runs fn as a process that is killed at the n-th call from now on. It answers which call that was, or nothing if
// fn came to its end.
func (w *world) dies(n int, fn func()) string {
	w.doom(n)
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	<-done
	name := w.fired()
	w.arm(0)
	return name
}

// halfAwake is a VM whose shim died at the n-th call after the commit of its wake, and the name of that call.
func (w *world) halfAwake(n int) (old *VM, at string) {
	w.t.Helper()
	w.machine.nics.told()
	w.must("create", w.create())
	w.at("commit", func() error { w.doom(n + 1); return nil })
	at = w.dies(0, func() { _ = w.start() })
	w.at("commit", nil)
	old, _ = w.service.current()
	return old, at
}

// isAwake looks at a VM whose wake a successor has taken to its end.
func (w *world) isAwake(vm *VM, when string) {
	w.t.Helper()
	j := w.journal()
	if !vm.inState(Running) || !w.machine.running() || j.Phase != journal.Own || j.Waking || j.Unplugged ||
		j.Resume.BootID != "" {
		w.t.Errorf("%s: VM is %s, its vCPUs run: %t, journal %+v", when, vm.state, w.machine.running(), j)
	}
	if nics := w.machine.nics.list(); !slices.Equal(nics, []string{"net0"}) || !w.net.up {
		w.t.Errorf("%s: NICs %v, link up %t", when, nics, w.net.up)
	}
	if rec := w.records.rec; rec.GetOwner().GetNode() != "a" || rec.GetOperation() != nil ||
		w.records.phase != nodev1.Phase_PHASE_SUCCEEDED {
		w.t.Errorf("%s: record %v, the operation ended as %s", when, rec, w.records.phase)
	}
}

// Wherever after the commit the shim of a wake dies, the VM is not ended: its successor resumes it, plugs its NIC in,
// once, and the wake has succeeded.
func TestShimDiesInAWake(t *testing.T) {
	for kind, asleep := range sleepers {
		t.Run(kind, func(t *testing.T) {
			for n := 1; ; n++ {
				w := asleep(t)
				old, at := w.halfAwake(n)
				if at == "" {
					if n < 4 {
						t.Errorf("only %d calls: the deaths are not everywhere", n-1)
					}
					return
				}
				j := w.journal()
				if j.Phase != journal.Own || !j.Waking {
					t.Fatalf("%s: journal %+v", at, j)
				}
				w.must("forget shim", old.write(func(j *journal.Journal) { j.Shim = proc.ID{} }))
				if pid, err := CleanUp(t.Context(), w.host(), old.dir, ""); err != nil || pid == 0 || !lives(w.machine.id) {
					t.Fatalf("%s: cleanup ended a VM that wakes: %d, %v", at, pid, err)
				}
				if err := Forget(t.Context(), w.host(), "ns", "vm"); !errdefs.IsFailedPrecondition(err) {
					t.Errorf("%s: forget = %v", at, err)
				}
				next := w.succeed(old)
				(&adoption{vm: next}).finishWake(t.Context())
				w.isAwake(next, at)
				if kind == "recycles" {
					w.told(theNIC)
				}
				m := &machineService{find: func() (*VM, error) { return next, nil }}
				if q, err := m.Query(t.Context(), nil); err != nil || !q.GetAdopted() || q.GetState() != string(Running) {
					t.Errorf("%s: the successor answers %v, %v", at, q, err)
				}
				w.agent.exit("") <- 0
				<-next.owner.init.done
			}
		})
	}
}

// The successor dies at each of its calls too, and its own successor goes on.
func TestSuccessorDiesInAWake(t *testing.T) {
	for kind, asleep := range sleepers {
		t.Run(kind, func(t *testing.T) {
			for n := 1; ; n++ {
				w := asleep(t)
				old, _ := w.halfAwake(1)
				first := w.succeed(old)
				at := w.dies(n, func() { (&adoption{vm: first}).finishWake(t.Context()) })
				if at == "" {
					w.isAwake(first, "undisturbed")
					return
				}
				next := w.succeed(first)
				(&adoption{vm: next}).finishWake(t.Context())
				w.isAwake(next, at)
			}
		})
	}
}

// Each call of the successor fails: the VM is awake, or it has ended and its record says
// that it was lost, never anything in between.
func TestWakeOfASuccessorFailsAtEachCall(t *testing.T) {
	for n := 1; ; n++ {
		w := recycling(t).asleep()
		old, _ := w.halfAwake(1)
		next := w.succeed(old)
		w.arm(n)
		(&adoption{vm: next}).finishWake(t.Context())
		at := w.fired()
		w.arm(0)
		if at == "" {
			w.isAwake(next, "undisturbed")
			return
		}
		if next.inState(Stopped) {
			if lives(w.machine.id) || w.records.phase != nodev1.Phase_PHASE_LOST_AT_DEST &&
				w.records.phase != nodev1.Phase_PHASE_SUCCEEDED {
				t.Errorf("%s: it has ended, its VMM lives: %t, the operation ended as %s", at, lives(w.machine.id), w.records.phase)
			}
			w.must("reclaim", reclaim(t.Context(), next.host, next.dir, next.journal.Load()))
			w.nothingLeft()
			continue
		}
		if !eventually(func() bool {
			return next.inState(Running) && !w.journal().Waking && len(w.machine.nics.list()) == 1
		}) {
			t.Errorf("%s: VM is %s, NICs %v", at, next.state, w.machine.nics.list())
		}
	}
}

// R9: a VM that has run here is never called one that has not: its source would run an
// older state of it. So it is lost, whatever the successor hears of its VMM.
func TestSuccessorOfAVMThatRan(t *testing.T) {
	for n := 1; ; n++ {
		w := newWorld(t).asleep()
		old, at := w.halfAwake(n)
		if at == "" {
			return
		}
		if !w.machine.running() {
			continue // it has not run
		}
		next := w.succeed(old)
		w.machine.powerOff()
		(&adoption{vm: next}).finishWake(t.Context())
		if j, err := journal.Read(next.dir); err == nil && j.Phase == journal.Fenced ||
			w.records.phase != nodev1.Phase_PHASE_LOST_AT_DEST {
			t.Errorf("%s: journal %+v, %v; the operation ended as %s", at, j, err, w.records.phase)
		}
	}
}

// A shim that dies while it gives a wake up leaves nothing that a successor would run.
func TestShimDiesGivingUp(t *testing.T) {
	for n := 1; ; n++ {
		w := newWorld(t).asleep()
		old, _ := w.halfAwake(1)
		next := w.succeed(old)
		w.at("restored", func() error { w.doom(n); return errors.New("injected") })
		at := w.dies(0, func() { (&adoption{vm: next}).finishWake(t.Context()) })
		w.at("restored", nil)
		if at == "" {
			if n < 2 {
				t.Error("no call: the deaths are nowhere")
			}
			return
		}
		if w.records.phase == nodev1.Phase_PHASE_LOST_AT_DEST && lives(w.machine.id) {
			t.Errorf("%s: the record says lost, and the VMM lives", at)
		}
	}
}

// A VM that wakes is no other task's: The tree that the guest lists is the tree that the snapshotter unpacked, with all
// that an image can hold. Two VMs of an image share its block file.
func TestWakingVMIsNotTaken(t *testing.T) {
	w := recycling(t).asleep()
	old, _ := w.halfAwake(3)
	w.must("forget shim", old.write(func(j *journal.Journal) { j.Shim = proc.ID{} }))
	w.must("unserve", old.socket.close(old.life))
	w.restart()
	if err := errgrpc.ToNative(w.create()); !errdefs.IsFailedPrecondition(err) || !lives(w.machine.id) {
		t.Fatalf("create = %v, the VMM lives: %t", err, lives(w.machine.id))
	}
	w.must("kill VMM", w.machine.id.Kill(t.Context()))
	if _, err := adoptVM(old.life, w.host(), "ns", "vm"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("adopt what has ended = %v", err)
	}
	_, err := CleanUp(t.Context(), w.host(), old.dir, "")
	w.must("clean up", err)
	w.nothingLeft()
}
