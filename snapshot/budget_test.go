package snapshot

import (
	"context"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// counted counts the bytes of packs that are read, whole or in parts.
type counted struct {
	store.Store
	packs map[string]bool
	read  atomic.Int64
}

type countedBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

func (c *counted) Get(ctx context.Context, o store.Object) (io.ReadCloser, error) {
	body, err := c.Store.Get(ctx, o)
	if err == nil && c.packs[o.Name] {
		body = countedBody{body, &c.read}
	}
	return body, err
}

func (c *counted) GetRange(ctx context.Context, d digest.Digest, offset, n int64) (io.ReadCloser, error) {
	body, err := c.Store.(store.Ranger).GetRange(ctx, d, offset, n)
	if err == nil {
		body = countedBody{body, &c.read}
	}
	return body, err
}

// needed are the stored bytes of the pages that a snapshot consists of.
func needed(x *format.Index) (n uint64) {
	slots := make([]uint16, len(x.Frames))
	for _, s := range x.Spaces {
		for _, r := range s.Runs {
			for slot := r.Slot; slot < r.Slot+r.Count; slot++ {
				slots[r.Frame] |= 1 << slot
			}
		}
	}
	for i, f := range x.Frames {
		n += uint64(f.Stored) * uint64(bits.OnesCount16(slots[i])) / uint64(f.Pages)
	}
	return n
}

// generations is a VM whose pages change here and there, over many generations.
type generations struct {
	*world
	rng             *rand.Rand
	changed, pushed uint64
}

func manyGenerations(t *testing.T) *generations {
	t.Helper()
	w := newWorld(t, 80)
	w.st = opened(t, storetest.Start(t, &storetest.Registry{}))
	most := mostPacks
	t.Cleanup(func() { mostPacks = most })
	mostPacks = 6
	g := &generations{world: w, rng: rand.New(rand.NewPCG(80, 80))}
	ram := randomBytes(g.rng, generationSize)
	w.src.Spaces[0].File, w.opts.Spec.Memory = blobFile(t, "ram", ram), generationSize
	return g
}

const generationSize = 18 << 20

// restored is the n-th of them, as it was: a restore never reads more than 1.3 x the bytes that it
// needs, and no snapshot names packs without end.
func (g *generations) restored(t *testing.T, n int, receipt Receipt, table *os.File) *os.File {
	t.Helper()
	s, err := Open(t.Context(), g.st, receipt.Digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{Store: g.st, packs: map[string]bool{}}
	for _, p := range s.parts.packs {
		c.packs[p.Digest.String()] = true
	}
	s.store = c
	out := emptyFile(t, "ram")
	if err := s.Fill(t.Context(), map[string]*os.File{"ram0": out, "disk0": emptyFile(t, "disk")},
		FillOptions{Table: table}); err != nil {
		t.Fatal(err)
	}
	if sumFile(t, out) != sumFile(t, g.src.Spaces[0].File) {
		t.Fatalf("generation %d: RAM differs", n)
	}
	need, read := needed(s.index), uint64(c.read.Load())
	if read*100 > need*130 {
		t.Errorf("generation %d: a restore reads %d bytes of %d packs and needs %d: %.2f x", n, read, len(s.parts.packs),
			need, float64(read)/float64(need))
	}
	if len(s.parts.packs) > mostPacks+2+generationSize*littleUse/format.PackSize { // those of this push, and fuller ones
		t.Errorf("generation %d: %d packs", n, len(s.parts.packs))
	}
	if n > 0 {
		g.pushed += receipt.Figures.Pushed
	}
	t.Logf("generation %2d: %2d packs, %.2f x read, %5d KiB pushed", n, len(s.parts.packs), float64(read)/float64(need),
		receipt.Figures.Pushed>>10)
	return out
}

// change writes to one page in so many.
func (g *generations) change(one int, write func(page int64, data []byte)) {
	for page := range generationSize / format.PageSize {
		if g.rng.IntN(one) == 0 {
			g.changed += format.PageSize
			write(int64(page), randomBytes(g.rng, format.PageSize))
		}
	}
}

// over wants what was packed anew to be bounded.
func (g *generations) over(t *testing.T) {
	t.Helper()
	t.Logf("%d MiB changed, %d MiB pushed", g.changed>>20, g.pushed>>20)
	if g.pushed > 5*g.changed {
		t.Errorf("%d bytes pushed for %d that changed", g.pushed, g.changed)
	}
}

// The budget of fragmentation holds for a VM that sleeps again and again.
func TestManyGenerations(t *testing.T) {
	g := manyGenerations(t)
	g.opts.Still = true
	for n := range 12 {
		g.opts.Ref.Operation = fmt.Sprint("op", n)
		receipt, err := Push(t.Context(), g.st, g.src, g.opts)
		if err != nil {
			t.Fatal(err)
		}
		table := emptyFile(t, "table")
		out := g.restored(t, n, receipt, table)
		g.src.Spaces[0].File = out
		g.change(12, func(page int64, data []byte) { _ = writeAt(out, data, page*format.PageSize) })
		if g.opts.Parent, err = OpenTable(table); err != nil {
			t.Fatal(err)
		}
	}
	g.over(t)
}

// And for one that never sleeps, and of which checkpoints are taken: much or little of it has changed since the
// last one. A tracker tells which pages, or there is none. Passes are made or not.
func TestManyCheckpoints(t *testing.T) {
	for name, tt := range map[string]struct {
		one     int // page in so many changes
		tracked bool
		budget  time.Duration
	}{
		"tracked": {12, true, time.Second}, "content": {12, false, time.Second}, "no passes": {12, false, 0},
		"little": {1000, true, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if raced && name != "tracked" {
				t.Skip("one of them has the race detector, in a minute: all go without it in make integration")
			}
			w := manyGenerations(t)
			guest := newGuest(w.world, 6)
			close(guest.stopped)
			for n := range 16 {
				guest.stop = make(chan struct{})
				w.opts.Ref.Operation, w.opts.Live, w.opts.Budget = fmt.Sprint("op", n), guest, tt.budget
				w.opts.Next, w.opts.Repository = emptyFile(t, "next"), "repo/uid1"
				if tt.tracked {
					w.opts.Tracker = &model{guest: guest, between: true, armed: n > 0}
				}
				receipt, err := Push(t.Context(), w.st, w.src, w.opts)
				if err != nil {
					t.Fatal(err)
				}
				w.restored(t, n, receipt, nil)
				w.change(tt.one, guest.write)
				if w.opts.Parent, err = OpenTable(w.opts.Next); err != nil {
					t.Fatal(err)
				}
			}
			if tt.one < 100 {
				w.over(t)
			}
		})
	}
}
