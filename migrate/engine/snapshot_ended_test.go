package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// deleteIf is what a shim does at the Delete of a task that has ended. Its claim may be that of an open operation:
// nothing is left, and the record refuses its word.
func (n *machine) deleteIf(ctx context.Context, deleted bool) {
	if !deleted {
		return
	}
	n.state[n.node] = gone
	_, err := n.records.Disown(context.WithoutCancel(ctx), &nodev1.DisownRequest{Vm: vm, Node: n.node,
		Generation: n.gens[n.node]})
	if !errdefs.IsFailedPrecondition(err) {
		n.broken = append(n.broken, fmt.Sprintf("Disown under an open operation: %v", err))
	}
}

// ends are operations whose VM ends after the commit, and of which nothing is left: what they lost, at which node,
// and how.
var ends = []struct {
	name, node string // of the engine
	owner      string
	start      func(*testing.T) *world
	give       func(*world, *Engine, string) error
}{
	{"task removed in its Start", "n2", "n2", func(t *testing.T) *world {
		w := asleep(t)
		w.removed = true
		return w
	}, (*world).wake},
	{"task removed after the look", "n2", "n2", func(t *testing.T) *world {
		w := asleep(t)
		w.startFails, w.deletes = &machinev1.QueryResponse{State: stateStopped, Record: recordOwn}, true
		return w
	}, (*world).wake},
	{"cold move", "c", "n2", func(t *testing.T) *world {
		w := newWorld(t)
		w.loses = true
		return w
	}, (*world).moveCold},
	{"live move", "c", "n2", func(t *testing.T) *world {
		w := liveWorld(t)
		w.loses = true
		return w
	}, (*world).moveLive},
}

// sweepsAt are the rounds of the node that owns the VM, which does not wait for anything to be long so.
func (w *world) sweepsAt(node string) {
	w.t.Helper()
	e := w.start(node)
	e.opts.Grace = time.Hour
	for range 2 {
		if err := e.Reconcile(w.t.Context(), at(false)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// unowned wants the VM to be lost and without an owner.
func (w *world) unowned(when string) {
	w.t.Helper()
	w.mu.Lock()
	broken := w.broken
	w.mu.Unlock()
	if rec := w.record(); rec.GetOwner() != nil || rec.GetOperation() != nil || !record.IsLost(rec) || len(broken) > 0 {
		w.t.Fatalf("%s: record %v; %v; calls %v", when, rec, broken, w.calls())
	}
}

// R9: a VM may end after the commit, and nothing of it may be left. It then has no owner as soon as its operation
// is over: a wake by force does not wait for the node's rounds. A late word of its shim ends no later claim, and no
// late Start has the commit of the lost one (I1).
func TestEndIsKnownAtOnce(t *testing.T) {
	for _, o := range ends {
		t.Run(o.name, func(t *testing.T) {
			w := o.start(t)
			e := w.start(o.node)
			if err := o.give(w, e, "op"); err != nil {
				t.Fatal(err)
			}
			op := w.settle("op")
			<-e.idle("op")
			if op.GetPhase() != nodev1.Phase_PHASE_LOST_AT_DEST {
				t.Fatalf("operation %v", op)
			}
			w.unowned("at once")
			again := &nodev1.CommitRequest{Vm: vm, Operation: "op", Attempt: 1, Generation: op.GetGeneration(),
				Owner: &nodev1.Owner{Node: o.owner}}
			if _, err := w.records.Commit(t.Context(), again); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("the commit is answered once more: %v", err)
			}
			digest := w.record().GetLost()
			if digest == "" {
				return // its source has it
			}
			w.mu.Lock()
			w.startFails, w.removed, w.loses, w.state["n1"] = nil, false, false, gone
			w.mu.Unlock()
			if _, err := w.start("n2").Wake(t.Context(), &nodev1.WakeRequest{Vm: vm, Digest: digest, Force: true,
				Operation: "again"}); err != nil {
				t.Fatal(err)
			}
			if op := w.settle("again"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
				t.Fatalf("forced: %v", op)
			}
			late := &nodev1.DisownRequest{Vm: vm, Node: o.owner, Generation: op.GetGeneration() + 1}
			if _, err := w.records.Disown(t.Context(), late); !errdefs.IsFailedPrecondition(err) || w.stateAt("n2") != runs {
				t.Errorf("a late word of the VM before: %v", err)
			}
			w.check("again")
		})
	}
}

// Each call fails, before and after its effect: at the latest the next round of the node knows that the VM has
// ended. It is not called ended while anything of it is there (R9).
func TestEndIsKnownIfCallsFail(t *testing.T) {
	for _, o := range ends {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/after=%v", o.name, after), func(t *testing.T) {
				t.Parallel()
				eachEnd(t, o.start, func(w *world, n int) {
					w.strike(fault{call: n, after: after, err: errdefs.ErrUnavailable})
					e := w.start(o.node)
					if err := o.give(w, e, "op"); err != nil {
						if err = o.give(w, e, "op"); err != nil {
							t.Fatalf("call %d: second order: %v", n, err)
						}
					}
					if op := w.settle("op"); op.GetPhase() != nodev1.Phase_PHASE_LOST_AT_DEST {
						return // it came to nothing before the commit
					}
					<-e.idle("op")
					w.sweepsAt(o.owner)
					w.unowned(fmt.Sprintf("call %d", n))
				})
			})
		}
	}
}

// The engine dies in each call: the next one, and the node's rounds, come to the same.
func TestEndIsKnownIfTheEngineDies(t *testing.T) {
	for _, o := range ends {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/after=%v", o.name, after), func(t *testing.T) {
				t.Parallel()
				eachEnd(t, o.start, func(w *world, n int) {
					first := w.engine(o.node)
					w.strike(fault{call: n, after: after, kill: first.close})
					err := o.give(w, first, "op")
					<-first.idle("op")
					first.Close()
					w.strike(fault{})
					second := w.start(o.node)
					if err != nil {
						err = o.give(w, second, "op")
					}
					if err = errors.Join(err, second.Resume(t.Context())); err != nil {
						t.Fatalf("call %d: %v", n, err)
					}
					if op := w.settle("op"); op.GetPhase() != nodev1.Phase_PHASE_LOST_AT_DEST {
						t.Fatalf("call %d: %v", n, op)
					}
					<-second.idle("op")
					w.sweepsAt(o.owner)
					w.unowned(fmt.Sprintf("call %d", n))
				})
			})
		}
	}
}

// eachEnd runs try for call 1, 2, .. until no call is hit any more.
func eachEnd(t *testing.T, start func(*testing.T) *world, try func(w *world, n int)) {
	for n := 1; ; n++ {
		w := start(t)
		try(w, n)
		if n > len(w.calls()) {
			if n < 8 {
				t.Fatalf("only %d calls: %v", n-1, w.calls())
			}
			return
		}
	}
}

// A task that has ended and was not deleted keeps its node's claim, whatever the rounds miss: its end is its
// shim's to say. So it does while its shim does not answer.
func TestEndIsNotKnownWhileSomethingIsLeft(t *testing.T) {
	w := asleep(t)
	w.startFails = &machinev1.QueryResponse{State: stateStopped, Record: recordOwn}
	n2 := w.start("n2")
	if err := w.wake(n2, "op"); err != nil {
		t.Fatal(err)
	}
	w.settle("op")
	<-n2.idle("op")
	for _, answers := range []error{nil, errdefs.ErrUnavailable} {
		w.broke("Query", answers)
		w.sweepsAt("n2")
		if rec := w.record(); rec.GetOwner().GetNode() != "n2" || w.count("Disown") > 0 {
			t.Fatalf("shim answers %v: record %v; calls %v", answers, rec, w.calls())
		}
	}
	w.broke("Query", nil)
	w.mu.Lock()
	w.state["n2"] = gone
	w.mu.Unlock()
	w.sweepsAt("n2")
	w.unowned("deleted")
}

// TestAskedIsForgotten shows that a sweep remembers nothing of records that are gone.
func TestAskedIsForgotten(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	e.retention.asked = map[string]time.Time{"gone": e.now(), w.uid: e.now()}
	if err := e.retention.trimEnded(t.Context(), []*nodev1.Record{w.record()}); err != nil {
		t.Fatal(err)
	}
	if len(e.retention.asked) != 1 || e.retention.asked[w.uid].IsZero() {
		t.Errorf("remembered: %v", e.retention.asked)
	}
}
