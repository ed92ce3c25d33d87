package engine

import (
	"context"
	"math"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/migrate/model"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// What a history comes to for those outside: controllers ask the records and give the VM away, and now and then the
// VM is heard, from a node. Porcupine judges whether all that has an order with two properties. In it the record
// changes hands one generation at a time, and the VM is heard from its owner only.

// hands is whose the VM is.
type hands struct {
	generation uint64
	owner      string
}

// change is what is asked of the record: to give the VM away, or, without to, to tell.
type change struct {
	to   hands
	runs hands // no question: who was heard, under which generation
}

// heard is one such event. until: the answer has not come, or was lost.
type heard struct {
	change
	at, until int64
	told      hands // where there is an answer
}

const lost = math.MaxInt64

func (s *simulation) tock() int64 { s.clock++; return s.clock }

// source of the open operation, who has the VM again after a revert.
func (s *simulation) source(ctx context.Context) string {
	rec, _ := s.records.Get(ctx, &nodev1.GetRequest{Vm: vm})
	return rec.GetOperation().GetSource()
}

// heardOf notes that the VM was heard.
func (s *simulation) heardOf(n *simNode, gen uint64) {
	s.heard = append(s.heard, &heard{change: change{runs: hands{gen, n.name}}, at: s.tock(), until: s.tock()})
}

// hears notes a call of the records. One that was refused has said nothing of whose the VM is.
func (s *simulation) hears(in change, do func() (*nodev1.Record, error)) (*nodev1.Record, error) {
	h := &heard{change: in, at: s.tock(), until: lost}
	s.heard = append(s.heard, h) // who calls may die in it
	rec, err := do()
	switch {
	case err == nil:
		h.told, h.until = hands{rec.GetGeneration(), rec.GetOwner().GetNode()}, s.tock()
	case !errdefs.IsUnavailable(err):
		h.to = hands{}
	}
	return rec, err
}

// owned is the record as porcupine knows it, from first on.
func owned(first hands) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{first} },
		Step: func(state, _, output any) []any {
			now, h := state.(hands), output.(*heard)
			made := h.to != hands{} && h.to.generation == now.generation+1
			switch {
			case h.runs != hands{}:
				return keeps(now, h.runs == now)
			case h.until == lost && made: // it may have been made, or not
				return []any{now, h.to}
			case h.until == lost:
				return []any{now}
			case made:
				return keeps(h.to, h.told == h.to)
			}
			return keeps(now, h.told == now)
		},
	}
	return m.ToModel()
}

func keeps(state hands, legal bool) []any {
	if !legal {
		return nil
	}
	return []any{state}
}

// judge reports whether there is such an order.
func (s *simulation) judge() bool {
	var all []porcupine.Operation
	for i, h := range s.heard {
		if h.until == lost && h.to == (hands{}) {
			continue // a question without an answer
		}
		all = append(all, porcupine.Operation{ClientId: i, Input: h.change, Call: h.at, Output: h, Return: h.until})
	}
	return porcupine.CheckOperations(owned(s.first), all)
}

// TestSimulatedHistories has porcupine judge what those outside hear of a VM (I1, I2). It judges one history in a
// few of TestSimulation's. Such a history is one of a record with one owner, who alone is heard. Histories that
// break what they must not are none of those.
func TestSimulatedHistories(t *testing.T) {
	runs, gives, beats := min(*simRuns, 500), 0, 0
	if raced {
		runs = min(runs, 100)
	}
	for seed := uint64(1); seed <= runs; seed++ {
		s := play(seed, model.None)
		if !s.judge() {
			t.Fatalf("seed %d: no order explains what was heard", seed)
		}
		for _, h := range s.heard {
			if h.runs != (hands{}) {
				beats++
			} else if h.to == h.told && h.until != lost {
				gives++
			}
		}
	}
	t.Logf("%d histories, in which the VM was given away %d times and heard %d times", runs, gives, beats)
	if gives < int(runs)/4 || beats < 50*int(runs) {
		t.Error("there is nothing to judge")
	}
	for _, m := range []model.Mutation{model.NativeResume, model.NoFreeze, model.CommitUnprepared} {
		back, found := mutate(m), false
		for seed := uint64(1); seed <= 2000 && !found; seed++ {
			found = !play(seed, m).judge()
		}
		if back(); !found {
			t.Errorf("%s: every history is one of a VM that is one", m)
		}
	}
}

// A seed is a history: else none that fails can be played again.
func TestSeedIsAHistory(t *testing.T) {
	for seed := uint64(1); seed <= 50; seed++ {
		one, other := play(seed, model.None), play(seed, model.None)
		if d := cmp.Diff(one.trace, other.trace); d != "" || len(one.heard) != len(other.heard) {
			t.Fatalf("seed %d is two histories, of %d and %d events: %s", seed, len(one.heard), len(other.heard), d)
		}
	}
}
