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
			wants(t, ExplorePlaces(tt.mutation), tt.states, tt.stuck, tt.broken)
		})
	}
}
