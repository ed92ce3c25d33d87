package main

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"godwit.dev/godwit/migrate/engine"
)

// While a sweep or a scan waits for a store of snapshots that hangs, the rounds of the node go on: they take up wakes
// that were placed here, checkpoints that are due, and what is left of shims.
func TestRoundsGoOnWhileStoresHang(t *testing.T) {
	const most = 2 * time.Minute // that a sweep takes
	for _, hangs := range []string{"sweep", "scan"} {
		synctest.Test(t, func(t *testing.T) {
			d := &daemon{engine: new(engine.Engine), templates: new(templates), moves: new(mover)}
			done := map[string]int{}
			var mu sync.Mutex
			var all sync.WaitGroup
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			for _, works := range d.periodicWork() {
				for i := range works {
					name := works[i].Name
					works[i].Do = func(ctx context.Context) error {
						mu.Lock()
						done[name]++
						mu.Unlock()
						if name != hangs {
							return nil
						}
						ctx, cancel := context.WithTimeout(ctx, most)
						defer cancel()
						<-ctx.Done()
						return ctx.Err()
					}
				}
				all.Go(func() { engine.RunPeriodically(ctx, works) })
			}
			all.Wait()
			if done["round"] < 35 || done[hangs] == 0 {
				t.Errorf("while each %s hangs: %v in 10 minutes", hangs, done)
			}
		})
	}
}
