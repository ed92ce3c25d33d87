package snapshot

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/store"
)

// answering is a store that answers otherwise whether it has a blob.
type answering struct {
	store.Store
	asked atomic.Int32
	stat  func(ctx context.Context) error
}

func (a *answering) Stat(ctx context.Context, o store.Object) (store.Info, error) {
	a.asked.Add(1)
	if err := a.stat(ctx); err != nil {
		return store.Info{}, fmt.Errorf("stat %s: %w", o, err)
	}
	return a.Store.Stat(ctx, o)
}

// What the node keeps may go before a VM that runs has read it: a pack that the store has lost refuses the wake, also
// where the node keeps it. A store that does not answer refuses nothing, and is not waited for.
func TestCheckOfWhatIsKept(t *testing.T) {
	w, k := newWorld(t, 64), kept(t)
	w.opts.Keeper = k
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	check := func(stat func(context.Context) error) (asked int, err error) {
		t.Helper()
		st := &answering{Store: w.st, stat: stat}
		s, err := OpenWith(t.Context(), store.Keeping(st, k), receipt.Digest, nil, &w.opts.Keys)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Check(t.Context())
		return int(st.asked.Load()), err
	}
	if n, err := check(func(context.Context) error { return nil }); err != nil || n == 0 {
		t.Errorf("packs that are there, asked %d times: %v", n, err)
	}
	if _, err := check(func(context.Context) error { return errdefs.ErrNotFound }); !errdefs.IsDataLoss(err) ||
		!strings.Contains(err.Error(), "eager") {
		t.Errorf("packs that the store has lost: %v", err)
	}
	if _, err := check(func(context.Context) error { return errdefs.ErrUnavailable }); err != nil {
		t.Errorf("a store that is away: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		_, err := check(func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
		if err != nil || time.Since(begun) > 2*time.Second {
			t.Errorf("a store that hangs, after %s: %v", time.Since(begun), err)
		}
	})
}
