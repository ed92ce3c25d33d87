package main

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/history"
)

// openHistory has the parts tell what happens. It is closed after all of them.
func (d *daemon) openHistory() {
	d.history = history.Open(filepath.Join(d.config.StateDir, "events.jsonl"), d.config.Node)
	d.undo = append(d.undo, d.history.Close)
}

// hear has the history hear of containerd and of the controller.
func (d *daemon) hear(ctx context.Context) {
	var from time.Time
	if last := d.history.Last(func(*nodev1.NodeEvent) bool { return true }); last != nil {
		from = time.Unix(0, last.GetHeardUnixNano())
	}
	var all sync.WaitGroup
	all.Go(func() { d.tasks.Tell(ctx, d.history, from) })
	all.Go(func() { d.history.FollowMoves(ctx, d.moves.service) })
	all.Wait()
}
