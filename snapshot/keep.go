package snapshot

import (
	"context"
	"sync"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// holdEvery is how often a push that takes long lists its packs in a manifest of their
// own: registries collect blobs that no manifest lists, after an hour or two.
const holdEvery = 15 * time.Minute

// keeper holds the packs of one push. What goes wrong with it costs nothing by itself:
// the commit asks for every pack once more.
type keeper struct {
	every time.Duration

	mu    sync.Mutex
	hold  *Hold
	last  time.Time
	packs []v1.Descriptor
}

func newKeeper(p *push) *keeper {
	return &keeper{every: p.o.HoldEvery, hold: NewHold(p.store, p.o.Ref), last: time.Now()}
}

// stored is told of each pack that the store has.
func (k *keeper) stored(ctx context.Context, pack v1.Descriptor) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.packs = append(k.packs, pack)
	if time.Since(k.last) < k.every {
		return
	}
	k.last = time.Now()
	_ = k.hold.Keep(ctx, k.packs) // the next pack tries again
}

// release drops the hold when the snapshot's own manifest lists the packs. What it cannot
// delete, a scan finds.
func (k *keeper) release(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = k.hold.Release(ctx)
}
