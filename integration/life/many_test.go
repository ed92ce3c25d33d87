//go:build integration

package life

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/integration/harness"
)

// load of the test: GODWIT_STRESS=full is what `make stress` asks for.
func loadSize() (total, clients int) {
	if os.Getenv("GODWIT_STRESS") == "full" {
		return 50, 8
	}
	return 12, 4
}

// What a daemon may hold more than before: its caches, and a connection that is closed a
// little later.
const (
	moreFiles      = 4
	moreGoroutines = 8
	moreKiB        = 32 << 10
)

// testMany creates, starts and deletes VMs by several clients at once. Nothing stays on
// the node, and no daemon grows.
func testMany(t *testing.T, n *harness.Node) {
	total, clients := loadSize()
	if err := one(t.Context(), t, n, "first"); err != nil { // what is made once
		t.Fatal(err)
	}
	empty, err := n.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before, err := n.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	var next atomic.Int64
	group, ctx := errgroup.WithContext(t.Context())
	for range clients {
		group.Go(func() error {
			for i := next.Add(1); i <= int64(total); i = next.Add(1) {
				if err := one(ctx, t, n, fmt.Sprintf("many%d", i)); err != nil {
					return fmt.Errorf("VM %d: %w", i, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d VMs by %d clients: %.1f s", total, clients, time.Since(begun).Seconds())
	if err := n.Clean(t.Context(), empty); err != nil {
		t.Error(err)
	}
	if err := harness.Poll(t.Context(), time.Minute, func(ctx context.Context) error {
		return grown(ctx, t, n, before)
	}); err != nil {
		t.Error(err)
	}
}

// one VM from its creation to its deletion, over a connection of its own.
func one(ctx context.Context, t *testing.T, n *harness.Node, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*bound)
	defer cancel()
	client := connect(t, n)
	defer client.Close()
	task, err := create(ctx, client, id, 33, smallest)
	if err != nil {
		return err
	}
	if err := task.Start(ctx); err != nil {
		return err
	}
	return remove(ctx, client, id, 33)
}

// grown says which daemon holds more than before.
func grown(ctx context.Context, t *testing.T, n *harness.Node, before map[string]harness.Usage) error {
	now, err := n.Usage(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		was, is := before[name], now[name]
		if is.Files > was.Files+moreFiles || is.Goroutines > was.Goroutines+moreGoroutines || is.KiB > was.KiB+moreKiB {
			return fmt.Errorf("%s held %+v and holds %+v", name, was, is)
		}
	}
	t.Logf("before %+v, after %+v", before, now)
	return nil
}
