package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// pods are the places of a world: those that were made and not ended, by id, and the node of each.
type pods struct {
	*world
	made    map[string]string
	unbound int // times that the scheduler has not chosen yet
	unready int // times that a pod which runs is not seen

	foreign string // VM whose places others make
	unasked error  // no answer which VMs these are
}

const sourcePod = "pod-source"

func podOf(op *nodev1.Operation, attempt uint32) string {
	if attempt == 0 {
		return sourcePod
	}
	return fmt.Sprintf("pod-%s-%d", op.GetId(), attempt)
}

// Makes is of each VM but those that others named.
func (p *pods) Makes(_ context.Context, rec *nodev1.Record) (bool, error) {
	return rec.GetVm().GetId() != p.foreign, p.unasked
}

// Place makes the pod at once. A scheduler binds it later.
func (p *pods) Place(ctx context.Context, rec *nodev1.Record) (node, place string, err error) {
	op := rec.GetOperation()
	err = p.do(ctx, "MakePod", func() error {
		place = podOf(op, op.GetAttempt())
		if node = p.made[place]; node == "" {
			if node = op.GetWish(); node == "" {
				node = "n2"
			}
			p.made[place] = node
		}
		if p.unbound--; p.unbound >= 0 {
			return NotYet("0/3 nodes are available")
		}
		return nil
	})
	return node, place, err
}

func (p *pods) Settled(ctx context.Context, rec *nodev1.Record) error {
	return p.do(ctx, "PodReady", func() error {
		if rec.GetOwner().GetNode() != rec.GetOperation().GetDestination() {
			p.broken = append(p.broken, "a pod is to be ready that has no VM")
		}
		if p.unready--; p.unready >= 0 {
			return NotYet("the pod is not ready")
		}
		return nil
	})
}

func (p *pods) Vacate(ctx context.Context, rec *nodev1.Record, attempt uint32) error {
	op := rec.GetOperation()
	return p.do(ctx, "EndPod", func() error {
		node := op.GetDestination()
		if attempt == 0 {
			node = op.GetSource()
		}
		if p.state[node] == runs {
			p.broken = append(p.broken, "the pod of a VM that runs is ended")
		}
		delete(p.made, podOf(op, attempt))
		return nil
	})
}

// placing is a world whose controller places VMs.
func placing(start func(*testing.T) *world) func(*testing.T) *world {
	return func(t *testing.T) *world {
		w := start(t)
		w.pods = &pods{world: w, made: map[string]string{}}
		if w.record().GetOwner().GetNode() != "" {
			w.pods.made[sourcePod] = "n1"
		}
		return w
	}
}

// wakePlaced orders a wake of the controller, and has the node that it comes to look at the records now and then. The
// daemon there is started again if it dies.
func (w *world) wakePlaced(e *Engine, id string) error {
	w.wakesAtNode()
	_, err := e.WakePlaced(w.t.Context(), &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: vm, Operation: id}})
	return err
}

// wakesAtNode starts the daemon of node n2 again and again, one at a time, also if the order is given again.
func (w *world) wakesAtNode() {
	w.mu.Lock()
	runs := w.wakes != nil
	w.mu.Unlock()
	if runs {
		return
	}
	node, over := w.engine("n2"), make(chan struct{})
	w.mu.Lock()
	w.wakes = node
	w.mu.Unlock()
	go func() {
		defer close(over)
		for ; w.t.Context().Err() == nil; time.Sleep(time.Millisecond) {
			if node.life.Err() != nil {
				node.Close()
				node = w.engine("n2")
				w.mu.Lock()
				w.wakes = node
				w.mu.Unlock()
			}
			_ = node.Resume(w.t.Context())
		}
		node.Close()
	}()
	w.t.Cleanup(func() { <-over })
}

func (w *world) movePlacedCold(e *Engine, id string) error { return w.moveTo(e, id, "", "cold") }
func (w *world) movePlacedLive(e *Engine, id string) error { return w.moveTo(e, id, "", "live") }

// checkPods wants the pod of the record alone.
func (w *world) checkPods(what string) {
	w.t.Helper()
	rec := w.record()
	w.mu.Lock()
	defer w.mu.Unlock()
	want := map[string]string{}
	if node := rec.GetOwner().GetNode(); node == "n1" {
		want[sourcePod] = node
	} else if node != "" {
		want[rec.GetPlace()] = node
	}
	if !maps.Equal(want, w.pods.made) {
		w.t.Fatalf("%s: pods are %v, want %v; calls %v", what, w.pods.made, want, w.log)
	}
}

// An order without a destination waits for its place, whatever keeps that away, and runs in no other one. The pod that
// the VM has left is ended after the new one is seen.
func TestPlaced(t *testing.T) {
	for name, give := range map[string]func(*world, *Engine, string) error{"cold": (*world).movePlacedCold,
		"live": (*world).movePlacedLive, "wake": (*world).wakePlaced} {
		start := liveWorld
		if name == "wake" {
			start = asleep
		}
		w := placing(start)(t)
		w.pods.unbound, w.pods.unready = 3, 2
		if err := give(w, w.start("c"), "op"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		op := w.settle("op")
		w.check(name)
		w.checkPods(name)
		rec := w.record()
		if op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || op.GetPlace() != "pod-op-1" || rec.GetPlace() != "pod-op-1" ||
			rec.GetOwner().GetNode() != "n2" {
			t.Errorf("%s: %v, %v", name, op, rec)
		}
		if d, err := record.Decide(rec, "n2", record.Intent{Place: "another"}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: another pod comes to %v, %v", name, d, err)
		}
		calls := w.calls()
		if name != "wake" && slices.Index(calls, "PodReady") > slices.Index(calls, "Release") {
			t.Errorf("%s: the source is released before its successor is seen: %v", name, calls)
		}
	}
}

// What is called off, or turned to another node, while it has no place leaves no pod, and the VM where it was.
func TestUnplacedIsCalledOff(t *testing.T) {
	cancel := func(w *world, e *Engine) error {
		_, err := e.Cancel(w.t.Context(), "op", "no more")
		return err
	}
	for name, c := range map[string]struct {
		start func(*testing.T) *world
		give  func(*world, *Engine, string) error
		then  func(*world, *Engine) error
		phase nodev1.Phase
		owner string
	}{
		"move": {liveWorld, (*world).movePlacedLive, cancel, nodev1.Phase_PHASE_ABORTED, "n1"},
		"wake": {asleep, (*world).wakePlaced, cancel, nodev1.Phase_PHASE_ABORTED, ""},
		"turned": {liveWorld, (*world).movePlacedLive, func(w *world, e *Engine) error {
			err := w.moveTo(e, "op", "n3", "live")
			w.mu.Lock()
			w.pods.unbound = 0 // not before: the move would have its place, and go on
			w.mu.Unlock()
			return err
		}, nodev1.Phase_PHASE_SUCCEEDED, "n3"},
		"turned back": {liveWorld, (*world).movePlacedLive, func(w *world, e *Engine) error {
			return w.moveTo(e, "op", "n1", "live")
		}, nodev1.Phase_PHASE_ABORTED, "n1"},
	} {
		for _, fails := range []int{0, 1, 2} { // ends of the pod
			w := placing(c.start)(t)
			w.pods.unbound = 1000000
			e := w.start("c")
			if err := c.give(w, e, "op"); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			w.called("MakePod", 1)
			if fails > 0 {
				w.broke("EndPod", errdefs.ErrUnavailable)
			}
			if err := c.then(w, e); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if fails > 0 {
				w.called("EndPod", fails)
				w.broke("EndPod", nil)
			}
			op := w.settle("op")
			w.check(name)
			w.checkPods(name)
			if op.GetPhase() != c.phase || w.record().GetOwner().GetNode() != c.owner {
				t.Errorf("%s: %v, owner %v", name, op, w.record().GetOwner())
			}
		}
	}
}

// A place that is found late, again, by another controller, or for an attempt that is over changes nothing.
func TestLatePlace(t *testing.T) {
	w := placing(liveWorld)(t)
	w.pods.unbound = 1000000
	e := w.start("c")
	if err := w.movePlacedLive(e, "op"); err != nil {
		t.Fatal(err)
	}
	gen := w.record().GetGeneration()
	place := func(attempt uint32, node, place string) error {
		_, err := w.records.Place(t.Context(), &nodev1.PlaceRequest{Vm: vm, Operation: "op", Attempt: attempt,
			Generation: gen, Node: node, Place: place})
		return err
	}
	w.called("MakePod", 1)
	if err := w.moveTo(e, "op", "n3", "live"); err != nil {
		t.Fatal(err)
	}
	w.until("the second attempt begins", func() bool { return w.record().GetOperation().GetAttempt() == 2 })
	w.called("MakePod", 2)
	for what, err := range map[string]error{"of the attempt before": place(1, "n2", "pod-op-1"),
		"on another node": place(2, "n2", "pod-op-2")} {
		if err == nil || !record.Unplaced(w.record().GetOperation()) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// another controller places it: this one goes on from there
	if err := place(2, "n3", "pod-op-2"); err != nil {
		t.Fatal(err)
	}
	if err := place(2, "n3", "pod-op-2"); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := place(2, "n3", "another"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("another pod: %v", err)
	}
	if op := w.settle("op"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || op.GetPlace() != "pod-op-2" {
		t.Errorf("%v", op)
	}
	w.check("op")
	w.checkPods("op")
}

// A controller without places ends what one with places has opened: nothing was made of it.
func TestPlacesAreGone(t *testing.T) {
	w := placing(liveWorld)(t)
	w.pods.unbound = 1000000
	first := w.engine("c")
	if err := w.movePlacedLive(first, "op"); err != nil {
		t.Fatal(err)
	}
	w.called("MakePod", 1)
	first.Close()
	w.pods = nil
	second := w.start("c")
	if err := second.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("op"); op.GetPhase() != nodev1.Phase_PHASE_FAILED || w.record().GetOwner().GetNode() != "n1" {
		t.Errorf("%v", op)
	}
	w.check("op")
}

// A VM whose places others make moves as it does without places. No answer is no such VM: nothing is opened.
func TestMoveOfAForeignVM(t *testing.T) {
	w := placing(func(t *testing.T) *world { return newWorld(t) })(t)
	w.pods.foreign = vm.GetId()
	e := w.start("c")
	resp, err := e.Migrate(t.Context(), &nodev1.MigrateRequest{Vm: vm, To: "n2", Operation: "op"})
	if err != nil || resp.GetOperation().GetByPlace() || resp.GetOperation().GetDestination() != "n2" {
		t.Fatalf("%v, %v", resp.GetOperation(), err)
	}
	w.settle("op")
	w.pods.unasked = errdefs.ErrUnavailable
	if err := w.moveTo(e, "back", "n1", ""); !errdefs.IsUnavailable(err) {
		t.Errorf("without an answer: %v", err)
	}
	if op := w.record().GetOperation(); op != nil {
		t.Errorf("%v was opened", op)
	}
}
