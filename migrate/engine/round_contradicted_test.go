package engine

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// contradicted is a store of which the test says what nodes say against its records.
type contradicted struct {
	believed
	mu    sync.Mutex
	state nodev1.StoreState
	asks  int // for all records
}

func (c *contradicted) set(doubts []*nodev1.Doubt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Doubts = doubts
}

func (c *contradicted) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asks
}

func (c *contradicted) Ask(_ context.Context, rec *nodev1.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rec == nil {
		c.asks++
		return transition.Contradicted(&c.state)
	}
	return transition.Doubted(&c.state, rec.GetVm(), rec)
}

// While one node contradicts the record of another VM, the store may be an old copy that does not know where a VM
// sleeps: its node does not give up the claim, and no snapshot is a leftover. Both go on once the word has ended.
func TestAContradictedStoreGivesNothingUp(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	now := time.Unix(1_000_000, 0)
	e.now = func() time.Time { return now }
	e.opts.Retention = Retention{Keep: 1, Grace: time.Hour, Scans: true}
	w.tags = []Leftover{{Tag: "g1-x", Digest: "sha256:1", UID: w.record().GetUid(), Operation: "x", Generation: 1}}
	st := &contradicted{}
	st.state.Doubts = []*nodev1.Doubt{{Vm: &nodev1.VM{Namespace: "ns", Id: "other"}, Node: "b", Credible: true}}
	e.Store = st
	w.set("n1", gone)
	rounds := func() (given, dropped bool) {
		for range 4 {
			now = now.Add(2 * time.Hour)
			if err := e.Reconcile(t.Context(), at(false)); err != nil && !errdefs.IsUnavailable(err) {
				t.Fatal(err)
			}
			if err := e.Scan(t.Context()); err != nil && !errdefs.IsUnavailable(err) {
				t.Fatal(err)
			}
		}
		return w.record().GetOwner().GetNode() == "", len(w.dropped) > 0
	}
	if given, dropped := rounds(); given || dropped {
		t.Errorf("a node contradicts: given up %t, dropped %v", given, w.dropped)
	}
	st.state.Doubts = nil
	if given, dropped := rounds(); !given || !dropped {
		t.Errorf("none does: given up %t, dropped %v", given, w.dropped)
	}
}

// A wake that is committed by an old copy may be over: its VM sleeps elsewhere by now. While a node contradicts the
// records, the wake whose VM is gone is not called lost. The claim of a move that has lost its VM is not given up.
func TestAContradictedStoreLosesNoVM(t *testing.T) {
	other := []*nodev1.Doubt{{Vm: &nodev1.VM{Namespace: "ns", Id: "other"}, Node: "b", Credible: true}}
	t.Run("wake", func(t *testing.T) {
		w := asleep(t)
		w.removed = true
		e, st := w.start("n2"), &contradicted{}
		st.set(other)
		e.Store = st
		if err := w.wake(e, "op"); err != nil {
			t.Fatal(err)
		}
		w.until("it was looked for the VM", func() bool { return w.count("Running") > 4 || w.record().GetOperation() == nil })
		rec := w.record()
		if op := rec.GetOperation(); op.GetPhase() != nodev1.Phase_PHASE_COMMITTED || rec.GetOwner().GetNode() != "n2" ||
			record.IsLost(rec) {
			t.Fatalf("a node contradicts: %v", rec)
		}
		st.set(nil)
		if op := w.settle("op"); op.GetPhase() != nodev1.Phase_PHASE_LOST_AT_DEST {
			t.Errorf("none does: %v", op)
		}
		w.until("the claim is given up", func() bool { return w.record().GetOwner().GetNode() == "" })
	})
	t.Run("move", func(t *testing.T) {
		w := liveWorld(t)
		w.loses = true
		e, st := w.start("c"), &contradicted{}
		st.set(other)
		e.Store = st
		if err := w.moveLive(e, "m"); err != nil {
			t.Fatal(err)
		}
		if op := w.settle("m"); op.GetPhase() != nodev1.Phase_PHASE_LOST_AT_DEST {
			t.Fatalf("%v", op)
		}
		w.until("the store is asked", func() bool { return st.asked() > 0 || w.record().GetOwner().GetNode() == "" })
		if rec := w.record(); rec.GetOwner().GetNode() != "n2" || record.KeptOf(rec) == nil {
			t.Errorf("a node contradicts: %v", rec)
		}
	})
}
