package model

import "testing"

// TestPodWake wants no violation and no stuck state of a pod's wake, and that each mutation breaks what it names. The
// counts pin the search itself.
func TestPodWake(t *testing.T) {
	for _, tt := range []struct {
		mutation Mutation
		states   int
		broken   string
	}{
		{None, 9759, ""},
		{RunPartlyArmed, 16975, RunsUnarmed},
		{ArmByName, 22538, RunsUnarmed},
		{CommitAfterKill, 36121, RunsUnarmed},
		{SuccessByArming, 11311, SaysItRan},
	} {
		t.Run("mutation="+string(tt.mutation), func(t *testing.T) {
			t.Parallel()
			got := ExplorePod(tt.mutation)
			if got.States != tt.states || got.Stuck != 0 {
				t.Errorf("%d states, %d stuck; want %d, none", got.States, got.Stuck, tt.states)
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
