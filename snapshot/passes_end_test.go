package snapshot

import (
	"testing"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
)

// A guest that writes as much in each pass is paused after the second
// one that finds it so. One that writes less each time gets more passes, and mostPasses at most.
func TestPassesEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		tenths   int // of the pages before
		from, to int // passes, with that of the pause
	}{"does not shrink": {10, 3, 3}, "shrinks": {7, 5, mostPasses + 1}, "grows": {11, 3, 3}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 48)
			g := newGuest(w, 6)
			close(g.stopped)
			m := &model{guest: g, between: true}
			n := 512
			w.opts.Live, w.opts.Still = g, true
			w.opts.Budget = precopy.PauseFixed // nothing fits it
			w.opts.Tracker = stepped{m, func() {
				for page := range n {
					g.write(int64(page), randomBytes(g.rng, format.PageSize))
				}
				n = n * tt.tenths / 10
			}}
			receipt, err := Push(t.Context(), w.st, w.src, w.opts)
			if err != nil {
				t.Fatal(err)
			}
			g.check(t, w, receipt)
			if got := len(receipt.Passes); got < tt.from || got > tt.to {
				t.Errorf("%d passes, want %d to %d", got, tt.from, tt.to)
			}
		})
	}
}
