package snapshot

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/store"
)

// crowded keeps who puts a pack until it is told to let all go.
type crowded struct {
	store.Store
	now  atomic.Int32
	pass chan struct{}
}

func (s *crowded) Put(ctx context.Context, o store.Object, c store.Content) error {
	s.now.Add(1)
	select {
	case <-s.pass:
	case <-ctx.Done():
	}
	return s.Store.Put(ctx, o, c)
}

// Packs are uploaded as many at once as worker.concurrency says, and no more: the others
// wait, and are known to.
func TestUploadsAtOnce(t *testing.T) {
	const packs = 5
	for n := int32(1); n <= 3; n++ {
		st := &crowded{Store: &memory{m: map[string][]byte{}}, pass: make(chan struct{})}
		o := Options{Ref: testRef(), Concurrency: int(n)}
		o.defaults()
		p := &push{store: st, o: o, config: &Config{}}
		p.keeper = newKeeper(p)
		g, ctx := errgroup.WithContext(t.Context())
		k := newPacker(p, g, ctx)
		for i := range packs {
			if err := errors.Join(k.add(new(frame), []byte{byte(i)}), k.close()); err != nil {
				t.Fatal(err)
			}
		}
		for begun := time.Now(); st.now.Load() != n || k.waiting.Load() != packs-n; time.Sleep(time.Millisecond) {
			if st.now.Load() > n || time.Since(begun) > time.Minute {
				t.Errorf("%d packs are sent at once, where %d may be; %d wait", st.now.Load(), n, k.waiting.Load())
				break
			}
		}
		close(st.pass)
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}
}
