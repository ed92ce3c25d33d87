package snapshot

import (
	"testing"
	"time"

	"godwit.dev/godwit/snapshot/format"
)

// S0-32: passes before the pause end when the rest fits its budget, or is more than eight tenths
// of what it was before.
func TestEnough(t *testing.T) {
	p := &passes{cost: func(rest uint64) time.Duration { return time.Duration(rest) * time.Millisecond }}
	for _, tt := range []struct {
		rest, before uint64
		want         bool
	}{
		{10, 0, true}, {10, 11, true}, {0, 0, true}, // it fits
		{11, 0, false},                     // the first look: there is nothing to compare with
		{80, 100, false}, {79, 100, false}, // it shrinks
		{81, 100, true}, {100, 100, true}, {500, 100, true},
	} {
		if got := p.enough(tt.rest, tt.before, 10*time.Millisecond); got != tt.want {
			t.Errorf("%d pages are left of %d: enough is %v", tt.rest, tt.before, got)
		}
	}
}

// The same of a whole push: a guest that writes as much in each pass is paused behind the second
// one that finds it so, one that writes less each time gets more passes, and mostPasses at most.
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
			w.opts.Budget = pauseFixed // nothing fits it
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
