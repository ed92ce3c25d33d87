package controller_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Each doubt that keeps missing VMs from being given up, and what no record names from being deleted, is told of once.
func TestADoubtThatBrakesIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		raise func(r *restored, onA *nodev1.Record)
		says  string
	}{
		"a VM that is paused, without a record": {func(r *restored, _ *nodev1.Record) {
			h := &nodev1.Held{Vm: vmOf("gone"), Uid: uuid.NewString(), Generation: 3, Phase: "PREPARED", Operation: "x"}
			for range 3 {
				r.report("b", h)
			}
		}, "b: it has VM default/gone"},
		"the owner has it no more": {func(r *restored, onA *nodev1.Record) {
			r.report("b", newer(onA))
			for range 3 {
				r.report("a")
			}
		}, "b: it has VM ns/web"},
		"the owner does not answer": {func(r *restored, onA *nodev1.Record) {
			for range 3 {
				r.report("b", newer(onA))
				r.clock = r.clock.Add(time.Minute)
			}
		}, "b: it has VM ns/web"},
		"it stands still at its owner": {func(r *restored, onA *nodev1.Record) {
			for range 3 {
				r.report("b", newer(onA))
				r.report("a", held(onA, "PREPARED"))
				r.clock = r.clock.Add(time.Minute)
			}
		}, "b: it has VM ns/web"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRestored(t)
			var told []string
			r.whole.Contradicts = func(node, reason string) { told = append(told, node+": "+reason) }
			c.raise(r, r.boot(web, "a"))
			state, err := r.memory.State(t.Context())
			if err != nil || transition.Contradicted(state) == nil {
				t.Fatalf("%v, %v", state, err)
			}
			if len(told) != 1 || !strings.HasPrefix(told[0], c.says) {
				t.Errorf("told %q, want %q once", told, c.says)
			}
		})
	}
}

// The error says what each remedy is for. A node that has what was given up while it was away lies of nothing.
func TestTheErrorOfADoubtNamesItsRemedy(t *testing.T) {
	r := newRestored(t)
	r.report("b", &nodev1.Held{Vm: vmOf("gone"), Uid: uuid.NewString(), Generation: 3, Phase: "PREPARED", Operation: "x"})
	state, err := r.memory.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{transition.Contradicted(state), transition.Doubted(state, vmOf("gone"), nil)} {
		at := func(text string) int { return strings.Index(err.Error(), text) }
		said := []int{at("godwit rm --force default/gone there"), at("If node b has no such VM, it lies"), at("retire b")}
		if !slices.IsSorted(said) || said[0] < 0 || at("To go on if node b lies") >= 0 {
			t.Errorf("%v", err)
		}
	}
}
