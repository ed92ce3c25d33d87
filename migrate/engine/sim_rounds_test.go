package engine

import (
	"flag"
	"log/slog"
	"strings"
	"testing"
)

var (
	roundRuns  = flag.Uint64("sim.rounds", 500, "histories with rounds to play")
	safetyOnly = flag.Bool("sim.safety", false, "pass over histories with rounds that only do not come to an end (I4)")
)

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
				s.nodes[name].unread, s.nodes[name].cut = 0, 0
				s.nodes[name].crash()
			}
		}
		s.step(pick(&s.schedule, s.actors))
		r.disturb()
		if s.faults && (!r.mild || s.rng.IntN(12) == 0) {
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

func playRounds(seed uint64) *simulation { return playPods(seed, false) }

// playPods is playRounds of a pod.
func playPods(seed uint64, pods bool) *simulation {
	s := newSimRounds(seed)
	s.rounds.pods = pods
	s.rounds.live()
	s.end()
	return s
}

// count adds what has happened in a history.
func (s *simulation) count(seen map[string]int) {
	for _, name := range simNodes {
		seen["rounds"] += s.nodes[name].looked
	}
	seen["put back"] += s.rounds.back
	seen["retired"] += s.rounds.retired
	seen["deleted"] += s.rounds.dropped
	seen["pinned"] += s.rounds.pins.made
	seen["moves"] += s.orders
	seen["taken"] += s.rounds.loss.taken
	told := strings.Join(s.trace, "\n")
	for what, text := range map[string]string{"boots": "boots the VM", "sleeps": "goes to sleep", "wakes": "has woken",
		"fences": "is fenced"} {
		seen[what] += strings.Count(told, text)
	}
}

// TestSimulatedRounds plays histories in which the rounds of the nodes run between any two steps of moves. The
// engine and the rules of the records are the real ones. What the rounds observe fails, comes late, is old, or is
// cut short. Users pin and name snapshots meanwhile, and a node lies about what it has. A seed that fails is played
// again by -sim.seed.
func TestSimulatedRounds(t *testing.T) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	defer slog.SetDefault(before)
	if *simSeed != 0 {
		s := playRounds(*simSeed)
		t.Logf("%s\nbroken: %q", strings.Join(s.trace, "\n"), s.broken)
		return
	}
	runs, seen := *roundRuns, map[string]int{}
	if raced {
		runs = min(runs, 50)
	}
	for seed := uint64(1); seed <= runs; seed++ {
		s := playRounds(seed)
		if len(s.broken) > 0 && !(*safetyOnly && strings.HasPrefix(s.broken[0], "I4")) {
			t.Fatalf("seed %d: %q", seed, s.broken)
		}
		s.count(seen)
	}
	t.Logf("%d histories: %v", runs, seen)
	if n := int(runs); seen["rounds"] < 100*n || seen["put back"] < n/20 || seen["moves"] < n ||
		seen["deleted"] < n/10 || seen["pinned"] < n/2 || seen["boots"] < n/20 || seen["sleeps"] < n/10 ||
		seen["wakes"] < n/10 || seen["taken"] < n/50 || seen["retired"] < n/100 {
		t.Errorf("too little happens: %v", seen)
	}
}
