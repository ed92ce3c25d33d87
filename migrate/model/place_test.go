package model

import "testing"

// TestPlaces wants no violation and no stuck state of a move that is placed later, and that each mutation breaks what
// it names. Two of them leave it stuck as well. The counts pin the search itself.
func TestPlaces(t *testing.T) {
	for _, tt := range []struct {
		mutation Mutation
		states   int
		stuck    int
		broken   string
	}{
		{None, 14197, 0, ""},
		{PlaceTwice, 16781, 512, RunsElsewhere},
		{PlaceOldAttempt, 23613, 0, OldPod},
		{StartAnywhere, 16261, 1024, RunsElsewhere},
		{LeavePods, 30591, 0, PodLeft},
	} {
		t.Run("mutation="+string(tt.mutation), func(t *testing.T) {
			t.Parallel()
			got := ExplorePlaces(tt.mutation)
			if got.States != tt.states || got.Stuck != tt.stuck {
				t.Errorf("%d states, %d stuck; want %d, %d", got.States, got.Stuck, tt.states, tt.stuck)
			}
			for name, labels := range got.Violations {
				t.Logf("%s: %s", name, Trace(labels))
				if name != tt.broken {
					t.Errorf("broken: %s", name)
				}
			}
			if tt.broken != "" && got.Violations[tt.broken] == nil {
				t.Errorf("not caught: %s", tt.broken)
			}
		})
	}
}
