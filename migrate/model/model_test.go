package model

import "testing"

// TestHandOver wants no violation and no stuck state of the protocol, and one at least
// of every mutation. The counts pin the search itself.
func TestHandOver(t *testing.T) {
	tests := []struct {
		mutation      Mutation
		states, stuck int
		shortest      int // steps to the first violation; 0: none
		broken        []string
	}{
		{None, 2813, 0, 0, nil},
		{NativeResume, 3299, 486, 4, []string{TwoRunners, SourceAfterDestination}},
		{NoFreeze, 3446, 0, 7, []string{TwoRunners, SourceAfterDestination}},
		{CommitUnprepared, 4172, 822, 6, []string{TwoRunners, SourceAfterDestination}},
		{RunNotFenced, 3033, 220, 19, []string{TwoRunners, SourceAfterDestination}},
		{CannotWithoutFence, 4735, 78, 9, []string{TwoRunners, SourceAfterDestination}},
		{DestroySourceBeforeRunning, 5355, 155, 8, []string{Lost}},
	}
	for _, tt := range tests {
		t.Run("mutation="+string(tt.mutation), func(t *testing.T) {
			t.Parallel()
			got := Explore(tt.mutation)
			if got.States != tt.states || got.Stuck != tt.stuck {
				t.Errorf("%d states, %d stuck; want %d, %d", got.States, got.Stuck, tt.states, tt.stuck)
			}
			shortest := 0
			for name, labels := range got.Violations {
				if shortest == 0 || len(labels) < shortest {
					shortest = len(labels)
				}
				t.Logf("%s: %s", name, Trace(labels))
			}
			if shortest != tt.shortest || len(got.Violations) != len(tt.broken) {
				t.Errorf("first violation after %d steps, %d in all; want %d, %v", shortest, len(got.Violations),
					tt.shortest, tt.broken)
			}
			for _, name := range tt.broken {
				if got.Violations[name] == nil {
					t.Errorf("not caught: %s", name)
				}
			}
		})
	}
}
