package shim

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/stdio"
)

// The deadline of a capture may fire while the vote is under way: from the vote on the
// controller alone decides, whatever the deadline has seen before.
func TestTheDeadlineDoesNotResumeAVotedVM(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	c := &capture{vm: vm, ref: w.ref(), done: make(chan struct{}), resp: &machinev1.CaptureResponse{Digest: "d"},
		deadline: time.NewTimer(time.Hour)}
	c.ctx, c.cancel = context.WithCancel(t.Context())
	set := func(s State) { vm.mu.Lock(); defer vm.mu.Unlock(); vm.state, vm.op.capture = s, c }
	set(Capturing)
	silent := make(chan struct{})
	go func() { c.expire(); close(silent) }()
	<-c.ctx.Done() // it has looked at the state
	w.must("write", vm.write(func(j *journal.Journal) { j.Phase = journal.Prepared }))
	set(Prepared)
	close(c.done)
	<-silent
	if !vm.inState(Prepared) || vm.journal.Load().Phase != journal.Prepared {
		t.Errorf("VM is %s, journal %s: it runs beside the one that the vote let go", vm.state, vm.journal.Load().Phase)
	}
	if err := c.abort(Captured); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("abort of a voted VM by the deadline = %v", err)
	}
	w.must("abort by the controller", c.abort(Captured, Prepared))
}

// The vote stops the VMM's process for real; an abort lets it go on, once: it names the
// generation, and said again it changes nothing.
func TestVoteStopsAndAbortContinues(t *testing.T) {
	w := newWorld(t).running()
	_, err := w.capture()
	w.must("capture", err)
	if w.machine.running() {
		t.Error("captured VM runs")
	}
	_, err = w.machineService().Vote(t.Context(), &machinev1.VoteRequest{Ref: w.ref()})
	w.must("vote", err)
	vm, _ := w.service.current()
	if j, err := journal.Read(vm.dir); err != nil || j.Phase != journal.Prepared {
		t.Errorf("journal after the vote: %v, %v", j, err)
	}
	if w.net.up {
		t.Error("tap is up after the vote")
	}
	if state := processState(t, w.machine.id.PID); state != 'T' {
		t.Errorf("VMM is %c after the vote", state)
	}
	stale := w.ref()
	stale.Generation++
	if _, err := w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: stale}); !errdefs.IsFailedPrecondition(
		errgrpc.ToNative(err)) || w.machine.running() {
		t.Errorf("abort under another generation: %v", err)
	}
	r, err := w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort again", err)
	if r.GetState() != string(Running) || !w.machine.running() || !w.net.up {
		t.Errorf("after the abort VM is %s", r.GetState())
	}
	if state := processState(t, w.machine.id.PID); state == 'T' {
		t.Error("VMM is stopped after the abort")
	}
}

// parent counts the contexts that were made of it and not ended.
type parent struct {
	context.Context
	never    chan struct{}
	children int
}

func (p *parent) Done() <-chan struct{} { return p.never }
func (p *parent) Value(any) any         { return nil }

// AfterFunc is what package context asks of a parent that is not its own.
func (p *parent) AfterFunc(func()) func() bool {
	p.children++
	return func() bool { p.children--; return true }
}

// A hold leaves nothing in the life of the shim, neither a checkpoint's.
func TestHoldEndsItsContext(t *testing.T) {
	for _, checkpoint := range []bool{false, true} {
		life := &parent{Context: t.Context(), never: make(chan struct{})}
		vm := newVM(life, slog.Default(), nil, "ns", "vm", "vm")
		vm.host = &Host{Config: &config.Config{RAMDir: t.TempDir()}}
		vm.journal.Begin(t.TempDir(), &journal.Journal{Resources: journal.Resources{Spec: &spec.Spec{}}})
		vm.owner.init = vm.owner.newProcess("", stdio.URIs{}, nil)
		vm.owner.init.started, vm.state = true, Running
		c := &capture{vm: vm, ref: &machinev1.Ref{Operation: "op"},
			req: &machinev1.CaptureRequest{Checkpoint: checkpoint, TimeoutMs: time.Hour.Milliseconds()}}
		if _, fresh, err := c.hold(); !fresh || err != nil {
			t.Fatalf("hold = %v, %v", fresh, err)
		}
		c.deadline.Stop()
		if c.cancel(); life.children != 0 {
			t.Errorf("checkpoint: %t: %d contexts are left", checkpoint, life.children)
		}
	}
}
