package shim

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// The deadline of a capture may fire while the vote is under way: from the vote on the
// controller alone decides, whatever the deadline has seen before.
func TestTheDeadlineDoesNotThawAVotedVM(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.the()
	c := &capture{ref: w.ref(), done: make(chan struct{}), resp: &machinev1.CaptureResponse{Digest: "d"}, deadline: time.NewTimer(time.Hour)}
	c.ctx, c.cancel = context.WithCancel(t.Context())
	set := func(s State) { vm.mu.Lock(); defer vm.mu.Unlock(); vm.state, vm.capture = s, c }
	set(Capturing)
	silent := make(chan struct{})
	go func() { vm.silent(c); close(silent) }()
	<-c.ctx.Done() // it has looked at the state
	w.must("write", vm.write(func(j *Journal) { j.Phase = Prepared }))
	set(Voted)
	close(c.done)
	<-silent
	if !vm.is(Voted) || vm.noted().Phase != Prepared {
		t.Errorf("VM is %s, journal %s: it runs beside the one that the vote let go", vm.state, vm.noted().Phase)
	}
	if err := vm.abort(c, Captured); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("abort of a voted VM by the deadline = %v", err)
	}
	w.must("abort by the controller", vm.abort(c, Captured, Voted))
}
