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
			wants(t, ExplorePod(tt.mutation), tt.states, 0, tt.broken)
		})
	}
}

// wants compares what a search has found: how many states, how many of them stuck, and the one rule that is broken;
// empty: none.
func wants(t *testing.T, got Result, states, stuck int, broken string) {
	t.Helper()
	if got.States != states || got.Stuck != stuck {
		t.Errorf("%d states, %d stuck; want %d, %d", got.States, got.Stuck, states, stuck)
	}
	for name, labels := range got.Violations {
		t.Logf("%s: %s", name, Trace(labels))
		if name != broken {
			t.Errorf("broken: %s", name)
		}
	}
	if broken != "" && got.Violations[broken] == nil {
		t.Errorf("not caught: %s", broken)
	}
}
