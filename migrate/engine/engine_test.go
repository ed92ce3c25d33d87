package engine

import (
	"fmt"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// settle waits for an operation's end.
func (w *world) settle(id string) *nodev1.Operation {
	w.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		resp, err := w.records.Operation(w.t.Context(), &nodev1.OperationRequest{Id: id})
		if err != nil {
			w.t.Fatal(err)
		}
		if resp.GetOperation().GetClosedUnixNano() != 0 {
			return resp.GetOperation()
		}
	}
	w.t.Fatalf("operation %s does not settle; calls: %v", id, w.calls())
	return nil
}

func (w *world) strike(f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = f
}

func (w *world) calls() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.log...)
}

// check wants exactly one of: a node owns and runs the VM; a digest owns it, exists, and
// no node holds anything of it.
func (w *world) check(id string) {
	w.t.Helper()
	rec, err := w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vm})
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.broken) > 0 {
		w.t.Fatalf("%s: %v; calls: %v", id, w.broken, w.log)
	}
	for node, state := range w.state {
		if mine := rec.GetOwner().GetNode() == node; mine != (state == runs) || !mine && state != gone {
			w.t.Fatalf("%s: owner is %v and the VM on %s is %q; calls: %v", id, rec.GetOwner(), node, state, w.log)
		}
	}
	if d := rec.GetOwner().GetDigest(); d != "" && !w.blobs[d] {
		w.t.Fatalf("%s: owner %s does not exist", id, d)
	}
	for _, ref := range rec.GetSnapshots() { // wherever its order was interrupted
		at, uid := path.Split(ref.GetRepository())
		if ref.GetGiven() != (at == "reg.example/gold/") || uid != rec.GetUid() {
			w.t.Fatalf("%s: a snapshot in %s, given %t", id, ref.GetRepository(), ref.GetGiven())
		}
	}
}

func (w *world) hibernate(e *Engine, id string) error {
	_, err := e.Hibernate(w.t.Context(), &nodev1.HibernateRequest{Vm: vm, Operation: id})
	return err
}

func (w *world) wake(e *Engine, id string) error {
	_, err := e.Wake(w.t.Context(), &nodev1.WakeRequest{Vm: vm, Operation: id})
	return err
}

func (w *world) checkpoint(e *Engine, id string) error {
	_, err := e.Checkpoint(w.t.Context(), &nodev1.CheckpointRequest{Vm: vm, Operation: id, Scheduled: true})
	return err
}

// checkpointElsewhere is a checkpoint, and the order says where it goes.
func (w *world) checkpointElsewhere(e *Engine, id string) error {
	_, err := e.Checkpoint(w.t.Context(), &nodev1.CheckpointRequest{Vm: vm, Operation: id, Scheduled: true,
		Prefix: "reg.example/gold"})
	return err
}

// asleep is a world whose VM sleeps.
func asleep(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	e := w.engine("n1")
	defer e.Close()
	if err := w.hibernate(e, "h0"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("h0"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("hibernate: %v", op)
	}
	w.check("h0")
	e.Close()
	w.log, w.ends = nil, map[string]int{}
	return w
}

// order is an operation that an engine is given.
type order struct {
	name, node string
	start      func(*testing.T) *world
	give       func(*world, *Engine, string) error
}

// firstOrders are those of a VM that has no record yet.
var firstOrders = []order{
	{"first hibernate", "n1", unrecorded, (*world).firstHibernate},
	{"first checkpoint", "n1", unrecorded, (*world).firstCheckpoint},
}

// orders are the two operations, each with the world it starts in and its node.
var orders = []order{
	{"hibernate", "n1", newWorld, (*world).hibernate},
	{"wake", "n2", asleep, (*world).wake},
	{"checkpoint", "n1", newWorld, (*world).checkpointElsewhere},
	{"cold move", "c", newWorld, (*world).moveCold},
	{"live move", "c", liveWorld, (*world).moveLive},
}

// placedOrders are those without a destination. The wake has two engines, the controller's and its node's.
var placedOrders = []order{
	{"placed cold move", "c", placing(newWorld), (*world).movePlacedCold},
	{"placed live move", "c", placing(liveWorld), (*world).movePlacedLive},
	{"placed wake", "c", placing(asleep), (*world).wakePlaced},
}

func TestHibernateThenWake(t *testing.T) {
	w := asleep(t)
	e := w.engine("n2")
	defer e.Close()
	if err := w.wake(e, "w0"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("w0"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("wake: %v", op)
	}
	w.check("w0")
	status, err := e.Status(t.Context(), "w0")
	if err != nil || !status.Settled || status.Figures.GetWakeMs() <= 0 {
		t.Fatalf("status %v: %v", status, err)
	}
	status, err = e.Status(t.Context(), "h0")
	if err != nil || status.Figures.GetPauseMs() != 12 || status.Figures.GetTotalBytes() != 4096 {
		t.Fatalf("status %v: %v", status, err)
	}
	rec, _ := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vm})
	if len(rec.Spent) != 1 || len(rec.Snapshots) != 1 || len(w.dropped) != 0 {
		t.Fatalf("record %v, dropped %v: want the snapshot spent and kept", rec, w.dropped)
	}
}

// TestFailAtEachCall fails every call of every part once, before and after its effect:
// the VM is never doubled nor lost, and the operation settles (I1, I3, I4).
func TestFailAtEachCall(t *testing.T) {
	for _, o := range slices.Concat(orders, firstOrders, placedOrders) {
		for _, class := range []error{errdefs.ErrUnavailable, errdefs.ErrInternal, errdefs.ErrFailedPrecondition,
			errdefs.ErrNotFound} {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/after=%v", o.name, class, after), func(t *testing.T) {
					t.Parallel()
					eachCall(t, o.start, func(w *world, n int) {
						w.strike(fault{call: n, after: after, err: class})
						e := w.engine(o.node)
						defer e.Close()
						if err := o.give(w, e, "op"); err != nil {
							w.strike(fault{})
							if err := o.give(w, e, "op"); err != nil {
								t.Fatalf("call %d: second order: %v", n, err)
							}
						}
						w.settle("op")
					})
				})
			}
		}
	}
}

// TestKillAtEachCall ends the engine in every call and starts another, which knows
// nothing but the records. A decision that is taken once more destroys and makes
// nothing a second time.
func TestKillAtEachCall(t *testing.T) {
	for _, o := range slices.Concat(orders, firstOrders, placedOrders) {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/after=%v", o.name, after), func(t *testing.T) {
				t.Parallel()
				eachCall(t, o.start, func(w *world, n int) {
					first := w.engine(o.node)
					w.strike(fault{call: n, after: after, kill: func() {
						first.close()
						w.mu.Lock()
						defer w.mu.Unlock()
						if w.wakes != nil { // the call may be of the other node's daemon
							w.wakes.close()
						}
					}})
					err := o.give(w, first, "op")
					<-first.idle("op")
					first.Close()
					w.strike(fault{})
					second := w.engine(o.node)
					defer second.Close()
					if err != nil {
						err = o.give(w, second, "op")
					}
					if rerr := second.Resume(t.Context()); err != nil || rerr != nil {
						t.Fatalf("call %d: order %v, resume %v", n, err, rerr)
					}
					if op := w.settle("op"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED {
						t.Fatalf("call %d: %v: a restart is no failure; calls %v", n, op, w.calls())
					}
					w.once(n)
				})
			})
		}
	}
}

// once wants that the VM was captured and brought to its end once at each node at most, and
// that no snapshot was given up.
func (w *world) once(n int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, ends := range w.ends {
		if ends > 1 {
			w.t.Fatalf("call %d: the VM was ended %d times at %s; calls %v", n, ends, node, w.log)
		}
	}
	if w.captures > 1 || len(w.dropped) > 0 {
		w.t.Fatalf("call %d: captured %d times, dropped %v; calls %v", n, w.captures, w.dropped, w.log)
	}
}

// idle is closed once e drives the operation no more.
func (e *Engine) idle(id string) <-chan struct{} {
	if r := e.running(id); r != nil {
		return r.done
	}
	done := make(chan struct{})
	close(done)
	return done
}

// eachCall runs try for call 1, 2, .. until no call is hit any more.
func eachCall(t *testing.T, start func(*testing.T) *world, try func(w *world, n int)) {
	for n := 1; ; n++ {
		w := start(t)
		try(w, n)
		w.check(fmt.Sprintf("call %d", n))
		if w.pods != nil && w.wakes == nil { // the pod of a wake that failed at its node is not the engine's to end
			w.checkPods(fmt.Sprintf("call %d", n))
		}
		if n > len(w.calls()) {
			if n < 8 {
				t.Fatalf("only %d calls: %v", n-1, w.calls())
			}
			return
		}
	}
}
