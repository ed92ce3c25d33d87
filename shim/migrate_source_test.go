package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/shim/journal"
)

// moving is a world whose VM runs, and whose record has a live move of it to node b.
func moving(t *testing.T) *world {
	t.Helper()
	w := newWorld(t).running()
	w.open("a", "b")
	return w
}

func (w *world) open(from, to string) {
	w.records.rec.Operation = &nodev1.Operation{
		Id: "op1", Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Source: from, Destination: to,
		Phase: nodev1.Phase_PHASE_TRANSFERRING, Generation: w.records.rec.GetGeneration(),
	}
}

func (w *world) offer() (*machinev1.OfferResponse, error) {
	r, err := w.machineService().Offer(w.t.Context(), &machinev1.OfferRequest{Ref: w.ref()})
	return r, errgrpc.ToNative(err)
}

func (w *world) send() (*machinev1.SendResponse, error) {
	if _, err := w.offer(); err != nil {
		return nil, err
	}
	r, err := w.machineService().Send(w.t.Context(), &machinev1.SendRequest{Ref: w.ref(), Address: "b:1", Channel: "c",
		Certificate: []byte("d"), Execs: w.execs})
	return r, errgrpc.ToNative(err)
}

func (w *world) vote() error {
	_, err := w.machineService().Vote(w.t.Context(), &machinev1.VoteRequest{Ref: w.ref()})
	return errgrpc.ToNative(err)
}

// An offer says what the VM is, keeps its certificate for the attempt, and changes nothing. The stream gets that
// identity, the budget and the bandwidth of the order. Delete is the last call: refused before the hand-over, it leaves
// nothing, and the network was let go without a word to the guest.
func TestSend(t *testing.T) {
	w := moving(t)
	o, err := w.offer()
	w.must("offer", err)
	again, err := w.offer()
	w.must("offer again", err)
	if string(o.GetCertificate()) != string(again.GetCertificate()) || len(o.GetCertificate()) == 0 ||
		len(o.GetObstacles()) != 0 || len(o.GetSpec()) == 0 || len(o.GetFacts()) == 0 {
		t.Errorf("offers %v and %v", o, again)
	}
	m := w.machineService()
	r, err := m.Send(t.Context(), &machinev1.SendRequest{
		Ref: w.ref(), Address: "b:1", Channel: "c", Certificate: []byte("d"), DowntimeMs: 30, Bandwidth: 5,
	})
	w.must("send", err)
	if r.GetDigest() != streamDigest {
		t.Errorf("digest %s", r.GetDigest())
	}
	if j := w.store.sent; j.Address != "b:1" || j.Ends.Channel != "c" || string(j.Ends.Peer) != "d" ||
		string(j.Ends.Own.Certificate) != string(o.GetCertificate()) ||
		j.Budget.Milliseconds() != 30 || j.Bandwidth != 5 || j.Ref.Operation != "op1" || len(j.Spaces) == 0 {
		t.Errorf("job %+v", j)
	}
	vm, _ := w.service.current()
	if j := vm.journal.Load(); j.Phase != journal.Sending || !j.Move || j.Digest != streamDigest || w.machine.running() {
		t.Errorf("journal %+v", j)
	}
	if state := processState(t, w.machine.id.PID); state != 'T' || w.net.up {
		t.Errorf("VMM is %c, tap up: %v, when the destination has loaded the state", state, w.net.up)
	}
	if err := w.kill("", 9); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("kill while it is sent: %v", err)
	}
	if _, err := w.service.State(ctxNS(t), &taskapi.StateRequest{ID: "vm"}); err != nil {
		t.Errorf("state while it is sent: %v", err)
	}
	w.uses("vote", vm, w.vote)
	if err := errgrpc.ToNative(w.delete()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("delete before the hand-over: %v", err)
	}
	if _, err := m.Release(t.Context(), &machinev1.ReleaseRequest{Ref: w.ref(), Digest: "stream:other"}); err == nil {
		t.Error("released to another digest")
	}
	if !w.store.lingers.Load() {
		t.Error("the worker lets go of the VM's memory while the hand-over wants the cores")
	}
	_, err = m.Release(t.Context(), &machinev1.ReleaseRequest{Ref: w.ref(), Digest: streamDigest})
	w.must("release", err)
	if w.store.lingers.Load() || w.store.outlives.Load() {
		t.Error("the worker has the VM's memory mapped when its file is removed")
	}
	if status := w.wait(""); status != 0 {
		t.Errorf("exit status %d", status)
	}
	w.must("delete", w.delete())
	if w.net.left == "" || w.net.detached != "" {
		t.Errorf("the network was left in %q, given back in %q: the VM runs elsewhere with its addresses", w.net.left,
			w.net.detached)
	}
	if told := w.machine.nics.told(); len(told) > 0 || len(w.machine.nics.list()) == 0 {
		t.Errorf("the guest's NICs: %v", told)
	}
	w.nothingLeft()
}

// R8: whatever fails before the vote, the VM runs on as before, and can be sent again.
func TestSendFailsAtEachCall(t *testing.T) {
	failEach(t, func(w *world) {
		w.running()
		w.open("a", "b")
	}, (*world).sendAndBack, func(t *testing.T, w *world, name string) {
		vm, err := w.service.current()
		w.must("find", err)
		if !vm.inState(Running) || !w.machine.running() || !w.net.up || vm.journal.Load().Phase != journal.Own ||
			vm.journal.Load().Move {
			t.Fatalf("%s failed: VM is %s, journal %s", name, vm.state, vm.journal.Load().Phase)
		}
		if state := processState(t, w.machine.id.PID); state == 'T' {
			t.Error("VMM is stopped")
		}
		_, err = w.send()
		w.must("send again", err)
	})
}

// R2: after the vote only the record's word gives the VM back, once, under its generation.
func TestRevert(t *testing.T) {
	w := moving(t)
	_, err := w.send()
	w.must("send", err)
	ref := w.ref()
	revert := func(generation uint64) error {
		_, err := w.machineService().Revert(t.Context(), &machinev1.RevertRequest{Ref: ref, OwnerGeneration: generation})
		return errgrpc.ToNative(err)
	}
	if err := revert(ref.GetGeneration() + 2); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("before the vote: %v", err)
	}
	w.must("vote", w.vote())
	if err := revert(ref.GetGeneration() + 2); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("without the record: %v", err)
	}
	w.records.rec.Owner, w.records.rec.Generation = &nodev1.Owner{Node: "a"}, ref.GetGeneration()
	if err := revert(ref.GetGeneration()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("before a commit: %v", err)
	}
	w.records.rec.Owner, w.records.rec.Generation = &nodev1.Owner{Node: "a"}, ref.GetGeneration()+2
	w.must("revert", revert(ref.GetGeneration()+2))
	w.must("revert again", revert(ref.GetGeneration()+2))
	vm, _ := w.service.current()
	if j, err := journal.Read(vm.dir); err != nil || j.Phase != journal.Own || j.Generation != ref.GetGeneration()+2 ||
		!w.machine.running() || !w.net.up {
		t.Errorf("journal %+v, %v", j, err)
	}
}

// A source whose shim dies in mid-stream runs on under its successor, without an order.
func TestSourceShimDies(t *testing.T) {
	w := moving(t)
	_, err := w.send()
	w.must("send", err)
	vm, _ := w.service.current()
	w.must("begin to vote", vm.vmmID().Stop(t.Context())) // it dies between this and PREPARED
	w.must("die", vm.write(func(j *journal.Journal) { j.Shim.PID = 0 }))
	w.must("unserve", vm.socket.close(vm.life))
	life, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	host := w.host()
	go func() { done <- Adopt(life, host, "ns", "vm") }()
	if !eventually(func() bool {
		j, err := journal.Read(vm.dir)
		return err == nil && j.Phase == journal.Own && j.Adopted && !j.Move
	}) {
		j, err := journal.Read(vm.dir)
		t.Errorf("journal %+v, %v", j, err)
	}
	cancel()
	<-done
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", vm.vmmID().PID))
	if err != nil || strings.Contains(string(stat), ") T ") {
		t.Errorf("the VMM's process: %s, %v", stat, err)
	}
}

// coming is a world on node b, to which a VM of node a is on its way.
func coming(t *testing.T) *world {
	t.Helper()
	return from(t, moving(t))
}

// receive makes the task of a VM that comes.
func (w *world) receive() error {
	r := w.bundle()
	var err error
	r.Options, err = record.Order("", record.Intent{Operation: "op1", Attempt: 1, Stream: w.stream})
	w.must("order", err)
	_, err = w.service.Create(ctxNS(w.t), r)
	return errgrpc.ToNative(err)
}

// connect is what godwitd does with the source's connection.
func (w *world) connect() {
	w.t.Helper()
	in, err := w.machineService().Incoming(w.t.Context(), &machinev1.IncomingRequest{Ref: w.ref()})
	w.must("incoming", err)
	w.pass(in.GetSocket())
}

// pass passes the source's connection to an arrival.
func (w *world) pass(socket string) {
	w.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket})
	if err != nil {
		return // the arrival has ended
	}
	defer c.Close()
	_, _, err = c.WriteMsgUnix([]byte("x"), unix.UnixRights(int(os.Stdin.Fd())), nil)
	if !errors.Is(err, unix.EPIPE) { // it ends just now
		w.must("pass connection", err)
	}
}

func (w *world) phase() journal.Phase {
	j, err := journal.Read(w.cfg.VMDir("ns", "vm"))
	if err != nil {
		return ""
	}
	return j.Phase
}

// commit is the controller's.
func (w *world) commit() {
	w.records.mu.Lock()
	defer w.records.mu.Unlock()
	w.records.rec.Operation.Phase = nodev1.Phase_PHASE_COMMITTED
	_ = w.records.own(&nodev1.Owner{Node: "b"})
}

func (w *world) arrived() bool {
	vm, err := w.service.current()
	w.must("find", err)
	return eventually(func() bool {
		p := vm.journal.Load().Phase
		return p == journal.Ready || p == journal.Fenced
	}) && vm.journal.Load().Phase == journal.Ready
}
