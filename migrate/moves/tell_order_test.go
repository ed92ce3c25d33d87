package moves

import (
	"slices"
	"testing"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A controller that dies right after a change of the records has told neither the switch-over nor the commit: the
// controller that goes on with the move, or ends it, tells both before, in order. Neither is told twice.
func TestTellsWhatCameBefore(t *testing.T) {
	whole := []string{moves.Switching, moves.Committed, moves.Succeeded}
	for name, c := range map[string]struct {
		told []engine.Type
		last engine.Type
		want []string
	}{
		"nothing was told":    {nil, engine.Succeeded, whole},
		"the switch-over was": {[]engine.Type{engine.Switching}, engine.Succeeded, whole},
		"both were": {[]engine.Type{engine.Switching, engine.Switching, engine.Committed}, engine.Succeeded,
			whole},
		"the commit is told": {nil, engine.Committed, whole[:2]},
		"it comes to nothing": {[]engine.Type{engine.Switching}, engine.Aborted,
			[]string{moves.Switching, moves.Aborted}},
		"lost after the commit":   {nil, engine.Lost, []string{moves.Switching, moves.Committed, moves.Lost}},
		"said again after itself": {[]engine.Type{engine.Succeeded}, engine.Succeeded, whole},
	} {
		t.Run(name, func(t *testing.T) {
			members, err := cluster.Open(t.Context(), storetest.NewMemory(), false)
			if err != nil {
				t.Fatal(err)
			}
			j := NewJournal(members.Append)
			op := &nodev1.Operation{Id: "m", Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 2, Source: "a", Destination: "b"}
			for _, kind := range append(c.told, c.last) {
				if kind != engine.Switching && kind != engine.Committed && kind != engine.Aborted {
					op.CommittedUnixNano = 1
				}
				j.Event(t.Context(), engine.Event{Type: kind, Kind: op.GetKind(), Operation: "m", Op: op})
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, ev := range members.Events(t.Context(), 0, 0) {
				if ev.GetAttempt() != 2 || ev.GetSource() != "a" || ev.GetDestination() != "b" {
					t.Errorf("told %v", ev)
				}
				got = append(got, ev.GetType())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("told %v, want %v", got, c.want)
			}
		})
	}
}

// So does the round that tells an end which was not told.
func TestTellsWhatCameBeforeAnEnd(t *testing.T) {
	members, err := cluster.Open(t.Context(), storetest.NewMemory(), false)
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{Cluster: members}
	for id, committed := range map[string]int64{"m": 1, "n": 0} {
		op := &nodev1.Operation{Id: id, Attempt: 1, Source: "a", Destination: "b", CommittedUnixNano: committed}
		for range 2 {
			if err := s.tell(t.Context(), op, moves.Failed); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := map[string][]string{}
	for _, ev := range members.Events(t.Context(), 0, 0) {
		got[ev.GetOperation()] = append(got[ev.GetOperation()], ev.GetType())
	}
	if !slices.Equal(got["m"], []string{moves.Switching, moves.Committed, moves.Failed}) ||
		!slices.Equal(got["n"], []string{moves.Failed}) {
		t.Errorf("told %v", got)
	}
}
