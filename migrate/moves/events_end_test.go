package moves

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A controller whose store does not answer ends soon, however many events are left.
func TestJournalEndsWithoutItsStore(t *testing.T) {
	was := closeBound
	closeBound = 50 * time.Millisecond
	t.Cleanup(func() { closeBound = was })
	j := NewJournal(func(ctx context.Context, _ *nodev1.MoveEvent) error {
		<-ctx.Done()
		return ctx.Err()
	})
	for i := range 20 {
		j.Event(t.Context(), engine.Event{Type: engine.Opened, Kind: nodev1.Kind_KIND_MIGRATE,
			VM: &nodev1.VM{Namespace: "default", Id: "web"}, Operation: fmt.Sprint(i)})
	}
	closed := make(chan error, 1)
	go func() { closed <- j.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(writeTimeout / 2):
		t.Fatal("the journal waits for a store that does not answer")
	}
}

// A call that is answered after Close may still tell an event: it is dropped, and the controller ends as it should.
func TestJournalTakesNothingAfterItsEnd(t *testing.T) {
	var written []string
	j := NewJournal(func(_ context.Context, ev *nodev1.MoveEvent) error {
		written = append(written, ev.GetOperation())
		return nil
	})
	tell := func(operation string) {
		j.Event(t.Context(), engine.Event{Type: engine.Opened, Kind: nodev1.Kind_KIND_MIGRATE,
			VM: &nodev1.VM{Namespace: "default", Id: "web"}, Operation: operation})
	}
	tell("before")
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	tell("after")
	if err := j.Close(); err != nil || !slices.Equal(written, []string{"before"}) {
		t.Errorf("written %q, %v", written, err)
	}
}
