package incarnation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
)

// againAtStart is between two tries of an order that waits for other controllers to be silent.
const againAtStart = time.Second

// RestoreOrdered gives the order that waits for the start of this daemon, before it serves anybody.
func RestoreOrdered(ctx context.Context, dir string, store nodev1.StoreService) error {
	order, done, err := record.ReadOrdered(dir)
	if err != nil || order == nil {
		return err
	}
	state, err := store.Restore(ctx, &nodev1.RestoreRequest{Retire: order.Retire})
	for end := time.Now().Add(cluster.Silence + cluster.Interval); errors.Is(err, controller.ErrUnchecked) &&
		ctx.Err() == nil && time.Now().Before(end); {
		retry.Sleep(ctx, againAtStart) // one that was stopped counts as up until it is silent
		state, err = store.Restore(ctx, &nodev1.RestoreRequest{Retire: order.Retire})
	}
	if err != nil {
		return fmt.Errorf("restore the store at the start, as godwit controller restore --at-start has ordered (give the "+
			"order again to change it): %w", err)
	}
	slog.WarnContext(ctx, "the store of the records was put back: no record changes until all nodes have reported",
		"incarnation", state.GetIncarnation(), "missing", state.GetMissing())
	return done()
}
