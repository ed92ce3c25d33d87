package shim

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// given is a VM that runs on under a successor after an abort.
func given(t *testing.T) (*world, *VM) {
	t.Helper()
	w := newWorld(t)
	vm, m, _ := orphan(t, w, true)
	_, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	return w, vm
}

// A Create does not touch a VM that runs on under a successor. Once its VMM is dead, the successor goes, and what it
// has left.
func TestCreateOverAnAdoptedVM(t *testing.T) {
	w, vm := given(t)
	other, err := w.process()
	w.must("start successor", err)
	w.must("name successor", vm.write(func(j *journal.Journal) { j.Shim = other }))
	machine := w.machine
	w.restart()
	if err := errgrpc.ToNative(w.create()); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("create = %v, want failed precondition", err)
	}
	if !lives(machine.id) || !lives(other) {
		t.Fatal("create killed a VM that runs")
	}
	w.must("kill VMM", machine.id.Kill(t.Context()))
	w.must("create", w.create())
	if lives(other) {
		t.Error("the successor lives beside the new task")
	}
	if mine, err := (&adoption{vm: vm}).stillOwner(); err != nil || mine {
		t.Errorf("the successor would free the new task: %v, %v", mine, err)
	}
}

// The successor of a successor takes over what runs, and reclaims what has ended.
func TestTheSuccessorDies(t *testing.T) {
	t.Run("runs", func(t *testing.T) {
		w, vm := given(t)
		w.must("forget", vm.write(func(j *journal.Journal) { j.Shim = proc.ID{} }))
		w.must("unserve", vm.socket.close(vm.life))
		if pid, err := CleanUp(t.Context(), w.host(), vm.dir, ""); err != nil || pid == 0 || !lives(w.machine.id) {
			t.Fatalf("cleanup killed an adopted VM: %d, %v", pid, err)
		}
		next, err := adoptVM(vm.life, w.host(), "ns", "vm")
		w.must("adopt", err)
		if !next.inState(Running) || !w.machine.running() {
			t.Fatalf("VM is %s", next.state)
		}
		w.agent.exit("") <- 0
		<-next.owner.init.done
	})
	t.Run("died", func(t *testing.T) {
		w, vm := given(t)
		w.must("forget", vm.write(func(j *journal.Journal) { j.Shim = proc.ID{} }))
		w.must("unserve", vm.socket.close(vm.life))
		w.must("kill VMM", w.machine.id.Kill(t.Context()))
		w.must("adopt", Adopt(t.Context(), w.host(), "ns", "vm"))
		w.nothingLeft()
	})
	t.Run("released", func(t *testing.T) {
		w := newWorld(t)
		vm, m, r := orphan(t, w, true)
		_, err := m.Release(t.Context(), &machinev1.ReleaseRequest{Ref: w.ref(), Digest: r.GetDigest()})
		w.must("release", err)
		w.must("forget", vm.write(func(j *journal.Journal) { j.Shim = proc.ID{} }))
		w.must("adopt", Adopt(t.Context(), w.host(), "ns", "vm"))
		w.nothingLeft()
	})
}

// After a reboot of the host neither VMM nor network namespace is there: the vote that
// was given counts all the same.
func TestAdoptAfterAReboot(t *testing.T) {
	w := newWorld(t).running()
	old, _ := w.service.current()
	r, err := w.capture()
	w.must("capture", err)
	_, err = w.machineService().Vote(t.Context(), &machinev1.VoteRequest{Ref: w.ref()})
	w.must("vote", err)
	w.must("forget", old.write(func(j *journal.Journal) { j.Shim = proc.ID{} }))
	w.must("unserve", old.socket.close(old.life))
	w.must("kill VMM", w.machine.id.Kill(t.Context()))
	w.at("open network", func() error { return errors.New("no such namespace") })
	vm, err := adoptVM(old.life, w.host(), "ns", "vm")
	w.must("adopt", err)
	m := &machineService{find: func() (*VM, error) { return vm, nil }}
	_, err = m.Release(t.Context(), &machinev1.ReleaseRequest{Ref: w.ref(), Digest: r.GetDigest()})
	w.must("release", err)
	if (&adoption{vm: vm}).needed() {
		t.Error("the successor waits for an operation that is over")
	}
}

// A VM that runs on after an abort, and whose successor has died, is resumed again and again by the next one. That one
// may have halted it for that, and to leave it would leave it halted.
func TestSuccessorOfAnAbortTriesAgain(t *testing.T) {
	w, vm := given(t)
	w.machine.set(false)
	w.at("resume", untilTold(2))
	if vm = w.succeed(vm); !vm.inState(Running) || !w.machine.running() {
		t.Errorf("VM is %s, runs %t", vm.state, w.machine.running())
	}
}
