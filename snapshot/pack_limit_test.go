package snapshot

import (
	"math/rand/v2"
	"testing"
	"time"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
)

// A VM may have more packs than a snapshot may name, of which little is in use. It sends none of them again for
// their number, neither in the next sleep nor between passes: packed anew, they would be as many. Small packs in
// addition to them are packed together all the same.
func TestFullPacksStay(t *testing.T) {
	defer func(n int) { mostPacks = n }(mostPacks)
	mostPacks = 2
	const few = 4 << 20 // what small packs hold, of passes too
	w := wide(t, 60)
	rng := rand.New(rand.NewPCG(81, 81))
	g := newGuest(w, 6)
	close(g.stopped)
	n := 512
	w.opts.Live, w.opts.Still, w.opts.Budget = g, true, precopy.PauseFixed // nothing fits it
	w.opts.Tracker = stepped{&model{guest: g, between: true}, func() {
		for page := range n {
			g.write(int64(page), randomBytes(rng, format.PageSize))
		}
		n = n * 7 / 10
	}}
	first, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	if len(first.Passes) < 4 || first.Moved > few {
		t.Errorf("%d bytes were sent again in %d passes", first.Moved, len(first.Passes))
	}
	w.opts.Live, w.opts.Tracker, w.opts.Budget = nil, nil, time.Duration(0)
	r := w.restore(t, first.Digest)
	packs := map[string]bool{}
	for _, p := range r.snap.parts.packs {
		if p.Size > 15<<20 {
			packs[p.Digest.String()] = true
		}
	}
	var together bool
	for i := range 5 {
		w.opts.Ref.Operation = "op" + string(rune('2'+i))
		w.src.Spaces[0].File, w.src.Spaces[1].File = r.ram, r.disk
		if w.opts.Parent, err = OpenTable(r.table); err != nil {
			t.Fatal(err)
		}
		next, err := Push(t.Context(), w.st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 && (next.Moved != 0 || next.Figures.New != 0) {
			t.Errorf("nothing has changed: %d bytes moved, %d new", next.Moved, next.Figures.New)
		}
		together = together || next.Moved != 0
		if next.Moved > few {
			t.Errorf("push %d: %d bytes moved", i, next.Moved)
		}
		r = w.restore(t, next.Digest)
		kept := 0
		for _, p := range r.snap.parts.packs {
			if packs[p.Digest.String()] {
				kept++
			}
		}
		if kept != len(packs) || kept < 3 || len(r.snap.parts.packs) > 4+mostPacks+1 {
			t.Errorf("push %d: %d of %d full packs are left, of %d", i, kept, len(packs), len(r.snap.parts.packs))
		}
		if _, err := r.ram.WriteAt(randomBytes(rng, 3*format.PageSize), int64(i)<<20); err != nil {
			t.Fatal(err)
		}
	}
	if !together {
		t.Error("small packs were never packed together")
	}
}

// A pack is as full as its bytes or its frames are: what is all frames would make as many anew.
func TestLittleIsInUse(t *testing.T) {
	const pages = format.PackFrames * format.FramePages
	for name, tt := range map[string]struct {
		p    pack
		want bool
	}{
		"hardly any":    {pack{live: 1, pages: 1}, true},
		"bytes":         {pack{live: format.PackSize / littleUse, pages: 1}, false},
		"short frames":  {pack{live: 1, pages: pages / littleUse}, false},
		"just a little": {pack{live: format.PackSize/littleUse - 1, pages: pages/littleUse - 1}, true},
	} {
		if got := tt.p.little(); got != tt.want {
			t.Errorf("%s: little %v", name, got)
		}
	}
}
