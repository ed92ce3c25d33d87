package engine

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/migrate/model"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var (
	simSeed = flag.Uint64("sim.seed", 0, "play this history only, and tell it")
	simRuns = flag.Uint64("sim.runs", defaultRuns, "histories to play")
	simTold = flag.String("sim.told", "", "file that takes their number once all have passed")
)

// modelPhase is a phase as package model has it.
func modelPhase(p nodev1.Phase) string {
	switch {
	case p == nodev1.Phase_PHASE_UNSPECIFIED, p == nodev1.Phase_PHASE_FAILED, p == nodev1.Phase_PHASE_ABORTED:
		return "idle"
	case abortable(p):
		return "preparing"
	}
	return strings.ToLower(strings.TrimPrefix(p.String(), "PHASE_"))
}

func play(seed uint64, m model.Mutation) *simulation {
	s := newSimulation(seed, m, m != model.None || seed%2 == 0)
	s.live()
	s.end()
	return s
}

// TestSimulation plays random histories of the real engine (I1, I4). A seed that
// fails is played again by -sim.seed.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		s := play(*simSeed, model.None)
		t.Logf("%s\nbroken: %q", strings.Join(s.trace, "\n"), s.broken)
		return
	}
	edges := map[string]bool{}
	for seed := uint64(1); seed <= *simRuns; seed++ {
		s := play(seed, model.None)
		if len(s.broken) > 0 {
			t.Fatalf("seed %d: %q", seed, s.broken)
		}
		for e := range s.edges {
			edges[e] = true
		}
	}
	if *simTold != "" {
		if err := os.WriteFile(*simTold, fmt.Append(nil, *simRuns), 0o644); err != nil {
			t.Error(err)
		}
	}
	for _, e := range []string{"node RELEASED INCOMING", "node RELEASED FENCED", "node FENCED FENCED",
		"node OWN INCOMING"} {
		delete(edges, e) // nodes of the model have one role each; here one that the VM left is a destination again
	}
	if *simRuns < defaultRuns || raced {
		t.Logf("%d histories; %d kinds of changes", *simRuns, len(edges))
		return
	}
	if d := cmp.Diff(model.Changes(), edges); d != "" {
		t.Errorf("changes of nodes' records and phases (-model +simulation):\n%s", d)
	}
}

// Each mutation of the model, built into engine or nodes, breaks what it breaks there: I1,
// I2 or I3.
func TestSimulatedMutations(t *testing.T) {
	from := map[model.Mutation]uint64{model.RunNotFenced: 16000} // one history in ten thousand shows it: begin near one
	for _, m := range []model.Mutation{model.NativeResume, model.NoFreeze, model.CommitUnprepared, model.RunNotFenced,
		model.CannotWithoutFence, model.DestroySourceBeforeRunning} {
		t.Run(string(m), func(t *testing.T) {
			defer mutate(m)()
			for seed := from[m]; seed < from[m]+20000; seed++ {
				if s := play(seed, m); len(s.broken) > 0 && !strings.HasPrefix(s.broken[0], "I4") {
					t.Logf("seed %d: %s", seed, s.broken[0])
					return
				}
			}
			t.Error("no history shows it")
		})
	}
}
