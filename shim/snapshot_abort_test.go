package shim

import (
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// A capture that is given back to a node with a full disk runs on, and the journal says so once there is room. After
// the vote, or where it was not ordered, the VM stays.
func TestResumeOnAFullDisk(t *testing.T) {
	abort := func(w *world) error {
		_, err := w.machineService().Abort(w.t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		return err
	}
	for name, c := range map[string]struct {
		vote   bool
		resume func(*world) error
		stays  State
	}{
		"aborted": {resume: abort, stays: Running},
		"voted":   {vote: true, resume: abort, stays: Prepared},
		"silence": {resume: func(w *world) error {
			vm, _ := w.service.current()
			vm.op.capture.expire()
			return errFake
		}, stays: Captured},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			vm, _ := w.service.current()
			_, err := w.capture()
			w.must("capture", err)
			if c.vote {
				_, err := w.machineService().Vote(t.Context(), &machinev1.VoteRequest{Ref: w.ref()})
				w.must("vote", err)
			}
			free := w.full()
			err = c.resume(w)
			if !vm.inState(c.stays) || w.machine.running() != (c.stays == Running) || (err == nil) != (c.stays == Running) {
				t.Fatalf("resume = %v, VM is %s", err, vm.state)
			}
			free()
			if c.stays != Running {
				w.must("abort", abort(w))
			}
			if !eventually(func() bool { j, err := journal.Read(vm.dir); return err == nil && j.Phase == journal.Own }) {
				t.Error("the journal never says OWN")
			}
			w.aborted++
			_, err = w.capture()
			w.must("capture again", err)
		})
	}
}

// A VM whose taps stay down, or whose guest does not answer the successor, runs on, and
// gets both when they work again.
func TestResumeMends(t *testing.T) {
	t.Run("links", func(t *testing.T) {
		w := newWorld(t).running()
		_, err := w.capture()
		w.must("capture", err)
		w.net.up = false
		w.at("link up", func() error { return errFake })
		_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		w.must("abort", err)
		vm, _ := w.service.current()
		up := make(chan struct{})
		w.at("link up", sync.OnceValue(func() error { close(up); return nil }))
		<-up
		if !vm.inState(Running) {
			t.Errorf("VM is %s", vm.state)
		}
	})
	t.Run("guest", func(t *testing.T) {
		w := newWorld(t)
		vm, m, _ := orphan(t, w, false)
		w.at("processes", func() error { return errFake })
		_, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		w.must("abort", err)
		if !vm.inState(Running) {
			t.Fatalf("VM is %s", vm.state)
		}
		w.at("processes", nil)
		w.agent.exit("") <- 0
		<-vm.owner.init.done
	})
}

// The VMM dies after the snapshot is complete: the guest was paused all the while, so the operation ends as if it
// lived. Until then the task cannot be deleted.
func TestVMMDiesAfterTheCapture(t *testing.T) {
	for name, vote := range map[string]bool{"captured": false, "voted": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			vm, _ := w.service.current()
			r, err := w.capture()
			w.must("capture", err)
			m := w.machineService()
			if vote {
				_, err := m.Vote(t.Context(), &machinev1.VoteRequest{Ref: w.ref()})
				w.must("vote", err)
			}
			w.must("kill VMM", w.machine.Kill(t.Context()))
			vm.watchVMM() // it has seen the end, as the one of the VM's own has or will
			if status, told := w.events.exit("vm"); told {
				t.Fatalf("containerd is told of an end with %d before the hand-over", status)
			}
			if err := errgrpc.ToNative(w.delete()); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("delete = %v", err)
			}
			if again, err := w.capture(); err != nil || again.GetDigest() != r.GetDigest() {
				t.Errorf("capture again = %v, %v", again, err)
			}
			v, err := m.Vote(t.Context(), &machinev1.VoteRequest{Ref: w.ref()})
			if err != nil || v.GetDigest() != r.GetDigest() {
				t.Fatalf("vote = %v, %v", v, err)
			}
			vm.op.capture.expire()
			if j, _ := journal.Read(vm.dir); j.Phase != journal.Prepared {
				t.Fatalf("journal is %s", j.Phase)
			}
			_, err = m.Release(t.Context(), &machinev1.ReleaseRequest{Ref: w.ref(), Digest: r.GetDigest()})
			w.must("release", err)
			if status := w.wait(""); status != 0 {
				t.Errorf("the task ended with %d after the hand-over", status)
			}
			w.must("delete", w.delete())
			w.nothingLeft()
		})
	}
}

// Shim and VMM die after the snapshot is complete: the successor votes for it.
func TestAdoptVotesForADeadVMM(t *testing.T) {
	w := newWorld(t).running()
	old, _ := w.service.current()
	r, err := w.capture()
	w.must("capture", err)
	w.must("forget", old.write(func(j *journal.Journal) { j.Shim = proc.ID{} }))
	w.must("unserve", old.socket.close(old.life))
	w.must("kill VMM", w.machine.id.Kill(t.Context()))
	vm, err := adoptVM(old.life, w.host(), "ns", "vm")
	w.must("adopt", err)
	m := &machineService{find: func() (*VM, error) { return vm, nil }}
	v, err := m.Vote(t.Context(), &machinev1.VoteRequest{Ref: w.ref()})
	if err != nil || v.GetDigest() != r.GetDigest() || vm.journal.Load().Phase != journal.Prepared {
		t.Fatalf("vote = %v, %v; journal %s", v, err, vm.journal.Load().Phase)
	}
	_, err = m.Release(t.Context(), &machinev1.ReleaseRequest{Ref: w.ref(), Digest: r.GetDigest()})
	w.must("release", err)
}

// A snapshot that is not complete gets no vote.
func TestNoVoteWithoutASnapshot(t *testing.T) {
	w := newWorld(t)
	vm, m, _ := orphan(t, w, false)
	vm.op.capture.digest = ""
	if _, err := m.Vote(t.Context(), &machinev1.VoteRequest{Ref: w.ref()}); !errdefs.IsFailedPrecondition(
		errgrpc.ToNative(err)) {
		t.Errorf("vote = %v", err)
	}
	if !vm.inState(Captured) || vm.journal.Load().Phase != journal.Sending {
		t.Errorf("VM is %s, journal %s", vm.state, vm.journal.Load().Phase)
	}
}

// An attempt is over before its Abort looks at the VM: a hold that comes in between would never end.
func TestAnAttemptIsOverBeforeAbortLooks(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	done := make(chan error, 1)
	vm.mu.Lock()
	go func() { _, err := (&handover{vm, w.ref()}).abort(t.Context()); done <- err }()
	over := eventually(func() bool { return vm.op.aborted.has(w.ref()) })
	err := (&capture{vm: vm, ref: w.ref()}).capturable()
	vm.mu.Unlock()
	w.must("abort", <-done)
	if !over || !errdefs.IsAborted(err) {
		t.Errorf("an attempt that is being aborted may hold the VM: %v", err)
	}
}
