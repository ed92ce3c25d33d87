package engine

import (
	"flag"
	"strings"
	"testing"

	"godwit.dev/godwit/migrate/model"
)

var roundRuns = flag.Uint64("sim.rounds", 500, "histories with rounds to play")

// faultySteps and calmSteps are how long a history with rounds is.
const (
	faultySteps = 4000
	calmSteps   = 4000
)

// live plays a history with rounds: a time of failures, then a calm one. Where nothing was lost by
// a reboot, or by a store that was put back, the VM runs at its owner in the end (I4).
func (r *simRounds) live() {
	s := r.s
	for i := range faultySteps + calmSteps {
		if s.faults = i < faultySteps; i == faultySteps {
			for _, name := range simNodes {
				s.nodes[name].unread = 0
				s.nodes[name].crash()
			}
		}
		s.step(pick(&s.schedule, s.actors))
		r.disturb()
		if s.faults && (!r.mild || s.rng.IntN(4) == 0) {
			s.disturb()
		} else if s.rng.IntN(4) == 0 {
			s.tick()
		}
		if len(s.broken) > 0 || !s.faults && i > faultySteps+calmSteps/2 && s.reboots+r.back == 0 && s.settled() {
			return
		}
	}
	if s.reboots+r.back == 0 {
		s.violated("I4: not settled: %s", s)
	}
}

func playRounds(seed uint64, m model.Mutation) *simulation {
	s := newSimRounds(seed, m)
	s.rounds.live()
	s.end()
	return s
}

// TestSimulatedRounds plays histories in which the rounds of the nodes run between any two steps of
// moves, by the real engine and the real rules of the records: what they observe fails, comes late, is
// old, or is cut short. A seed that fails is played again by -sim.seed.
func TestSimulatedRounds(t *testing.T) {
	if *simSeed != 0 {
		s := playRounds(*simSeed, model.None)
		t.Logf("%s\nbroken: %q", strings.Join(s.trace, "\n"), s.broken)
		return
	}
	runs, seen := *roundRuns, map[string]int{}
	if raced {
		runs = min(runs, 50)
	}
	for seed := uint64(1); seed <= runs; seed++ {
		s := playRounds(seed, model.None)
		if len(s.broken) > 0 {
			t.Fatalf("seed %d: %q", seed, s.broken)
		}
		for _, name := range simNodes {
			seen["rounds"] += s.nodes[name].looked
		}
		seen["put back"] += s.rounds.back
		seen["deleted"] += s.rounds.dropped
		seen["boots"] += strings.Count(strings.Join(s.trace, "\n"), "boots the VM")
		seen["moves"] += s.orders
	}
	t.Logf("%d histories: %v", runs, seen)
	if n := int(runs); seen["rounds"] < 100*n || seen["put back"] < n/10 || seen["moves"] < n || seen["deleted"] < n/10 || seen["boots"] < n/20 {
		t.Errorf("too little happens: %v", seen)
	}
}

// TestSimulatedRoundMutations shows that each fault which a review found in the rounds, built back in,
// breaks a history in 10,000 at the latest.
func TestSimulatedRoundMutations(t *testing.T) {
	for _, m := range []model.Mutation{AbsentByList, RoundKills, StoreWentBack} {
		t.Run(string(m), func(t *testing.T) {
			for seed := uint64(1); seed <= 10000; seed++ {
				if s := playRounds(seed, m); len(s.broken) > 0 && !strings.HasPrefix(s.broken[0], "I4") {
					t.Logf("seed %d: %s", seed, s.broken[0])
					return
				}
			}
			t.Error("no history shows it")
		})
	}
}
