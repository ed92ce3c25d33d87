package engine

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// PeriodicInterval is how often the work of a node is done: it looks for records that nothing is left of,
// tags that could not be dropped, shims that died in an operation.
const PeriodicInterval = 15 * time.Second

// firstRetry is about how long work that has failed waits for its next try. It doubles with each one.
const firstRetry = time.Second

// Work is one kind of what is done from time to time.
type Work struct {
	Name string
	Do   func(context.Context) error
}

// periodicWork is the state of one work.
type periodicWork struct {
	Work
	due       time.Time     // of the next try, where it comes before all are due
	wait      time.Duration // after its last failure; 0: it has not failed
	lastError string        // an error that lasts is logged once
}

// RunPeriodically does the works at start and from time to time. What fails is tried again alone, soon at
// first and then less and less often: the controller may not be there yet, or have all nodes come back
// at once. The rounds of nodes that start together are not at the same time.
func RunPeriodically(ctx context.Context, works []Work) {
	all := make([]periodicWork, len(works))
	for i, w := range works {
		all[i].Work = w
	}
	pause := rand.N(PeriodicInterval)
	for {
		for i := range all {
			if all[i].do(ctx); ctx.Err() != nil {
				return
			}
		}
		next := time.Now().Add(pause)
		if !again(ctx, all, next) {
			return
		}
		pause = PeriodicInterval
	}
}

// again does what has failed until all are due, and reports whether they are.
func again(ctx context.Context, all []periodicWork, until time.Time) bool {
	for {
		next := until
		for i := range all {
			if w := &all[i]; w.retries() && w.due.Before(next) {
				next = w.due
			}
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Until(next)):
		}
		if next.Equal(until) {
			return true
		}
		for i := range all {
			if w := &all[i]; w.retries() && !time.Now().Before(w.due) {
				if w.do(ctx); ctx.Err() != nil {
					return false
				}
			}
		}
	}
}

// retries reports whether work is tried again before all are due.
func (w *periodicWork) retries() bool { return w.wait > 0 && w.wait < PeriodicInterval }

func (w *periodicWork) do(ctx context.Context) {
	err := w.Do(ctx)
	text := ""
	switch {
	case ctx.Err() != nil:
		return
	case err == nil:
		w.wait = 0
	default:
		w.wait = min(max(firstRetry, 2*w.wait), PeriodicInterval)
		w.due = time.Now().Add(w.wait/2 + rand.N(w.wait))
		if text = err.Error(); w.lastError != text {
			slog.WarnContext(ctx, "periodic work waits", "work", w.Name, "error", err)
		}
	}
	w.lastError = text
}
