package moves

import (
	"context"
	"errors"
	"strings"
	"testing"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Who watches from the first event on hears all that are remembered, though no message takes
// them at once.
func TestManyEventsAreTold(t *testing.T) {
	const all = 1200
	members, err := cluster.Open(t.Context(), storetest.NewMemory(), false)
	if err != nil {
		t.Fatal(err)
	}
	for range all {
		if err := members.Append(t.Context(), &nodev1.MoveEvent{Type: moves.Retrying, Operation: "op",
			Reason: strings.Repeat("x", 4096)}); err != nil {
			t.Fatal(err)
		}
	}
	client := client(t, &Service{Cluster: members})

	ctx, cancel := context.WithCancelCause(t.Context())
	enough, heard := errors.New("enough"), uint64(0)
	err = client.Follow(ctx, &nodev1.WatchRequest{}, func(ev *nodev1.MoveEvent) error {
		if heard++; ev.GetId() != heard {
			t.Errorf("event %d comes as number %d", ev.GetId(), heard)
		}
		if heard == all {
			cancel(enough)
		}
		return nil
	})
	if !errors.Is(context.Cause(ctx), enough) {
		t.Errorf("%d events of %d: %v", heard, all, err)
	}
}
