package moves

import (
	"context"
	"slices"
	"testing"
	"time"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A switch-over is not written while its VM stands still for the commit, which the same store makes. What comes
// after it keeps its place, and the end of the journal waits for nothing.
func TestSwitchOverIsWrittenAside(t *testing.T) {
	was := laterAppend
	laterAppend = time.Hour
	defer func() { laterAppend = was }()
	var got []string
	j := NewJournal(func(_ context.Context, ev *nodev1.MoveEvent) error {
		got = append(got, ev.GetType())
		return nil
	})
	op := &nodev1.Operation{Id: "m", Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1}
	tell := func(kind engine.Type) {
		j.Event(t.Context(), engine.Event{Type: kind, Kind: op.GetKind(), Operation: "m", Op: op})
	}
	tell(engine.Switching)
	op.CommittedUnixNano = 1
	tell(engine.Committed)
	for len(j.queue) > 2 { // it has the first one
		time.Sleep(time.Millisecond)
	}
	if len(got) > 0 {
		t.Errorf("written at once: %v", got)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if want := []string{moves.Switching, moves.Switching, moves.Committed}; !slices.Equal(got, want) {
		t.Errorf("written %v, want %v", got, want)
	}
}
