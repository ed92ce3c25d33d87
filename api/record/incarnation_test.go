package record

import (
	"math/rand/v2"
	"testing"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Generations of an incarnation are above all that an earlier one has given, whatever was given.
// Within one they count by one. No two of one incarnation become the same when they are lifted.
func TestGenerations(t *testing.T) {
	const first, second = 1_800_000_000, 1_800_000_001
	for _, c := range []struct{ generation, incarnation, want uint64 }{
		{0, 0, 1}, {7, 0, 8}, {0, first, first<<20 + 1}, {7, first, first<<20 + 8}, {first<<20 + 8, first, first<<20 + 9},
		{first<<20 + 9, second, second<<20 + 10}, {1<<20 + 3, first, first<<20 + 4},
	} {
		got := After(c.generation, c.incarnation)
		if got != c.want {
			t.Errorf("after %d under %d comes %d, want %d", c.generation, c.incarnation, got, c.want)
		}
		if rec := (&nodev1.Record{Generation: got, Incarnation: c.incarnation}); !Follows(rec, c.generation) ||
			Follows(rec, c.generation+1) {
			t.Errorf("what follows %d under %d", c.generation, c.incarnation)
		}
	}
	if After(Floor(MaxIncarnation), MaxIncarnation) >= 1<<53 {
		t.Error("the last incarnation has generations that are no numbers of JSON")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		a, b := rng.Uint64N(1<<20), rng.Uint64N(1<<20)
		if a != b && Lifted(a, first) == Lifted(b, first) || After(After(a, first), second) <= After(b, first) {
			t.Fatalf("%d and %d", a, b)
		}
	}
	rec := &nodev1.Record{Incarnation: first, Known: 5, Generation: 6}
	for generation, want := range map[uint64][2]bool{4: {true, false}, 5: {true, true}, 6: {true, true},
		Floor(first): {false, false}} {
		if Predates(rec, generation) != want[0] || Unknown(rec, generation) != want[1] {
			t.Errorf("generation %d: predates %v, unknown %v", generation, Predates(rec, generation), Unknown(rec, generation))
		}
	}
	if none := (&nodev1.Record{Generation: 6}); Predates(none, 5) || Unknown(none, 7) {
		t.Error("a store that was never put back")
	}
}
