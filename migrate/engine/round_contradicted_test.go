package engine

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// contradicted is a store of which the test says what nodes say against its records.
type contradicted struct {
	believed
	state nodev1.StoreState
}

func (c *contradicted) Ask(_ context.Context, rec *nodev1.Record) error {
	if rec == nil {
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
