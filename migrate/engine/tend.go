package engine

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// TendInterval is how often owed work is looked for: records that nothing is left of,
// tags that could not be dropped, shims that died in an operation.
const TendInterval = 15 * time.Second

// Work is one kind of what may be owed.
type Work struct {
	Name string
	Do   func(context.Context) error
}

// Tend does owed work at start and from time to time (P-20). What fails is tried again
// at the next round: the controller may not be there yet. The rounds of nodes that start together
// are not at the same time.
func Tend(ctx context.Context, works []Work) {
	said := map[string]string{} // what goes on being so is said once
	pause := rand.N(TendInterval)
	for {
		for _, w := range works {
			err := w.Do(ctx)
			if ctx.Err() != nil {
				return
			}
			text := ""
			if err != nil {
				text = err.Error()
			}
			if err != nil && said[w.Name] != text {
				slog.WarnContext(ctx, "owed work waits", "work", w.Name, "error", err)
			}
			said[w.Name] = text
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = TendInterval
	}
}
