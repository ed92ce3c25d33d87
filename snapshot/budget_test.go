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

// The budget of fragmentation: over many generations of a VM whose pages change here and
// there, a restore never reads more than 1.3 x the bytes that it needs, no snapshot
// names packs without end, and what is packed anew for that is bounded.
func TestManyGenerations(t *testing.T) {
	const size, generations = 18 << 20, 12
	w := newWorld(t, 80)
	r := storetest.Start(t, &storetest.Registry{})
	w.st = opened(t, r)
	rng := rand.New(rand.NewPCG(80, 80))
	ram := randomBytes(rng, size)
	w.src.Spaces[0].File, w.opts.Spec.Memory = blobFile(t, "ram", ram), size
	w.opts.Still = true
	defer func(n int) { mostPacks = n }(mostPacks)
	mostPacks = 6
	var changed, pushed uint64
	for n := range generations {
		w.opts.Ref.Operation = fmt.Sprint("op", n)
		receipt, err := Push(t.Context(), w.st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), w.st, receipt.Digest, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := &counted{Store: w.st, packs: map[string]bool{}}
		for _, p := range s.parts.packs {
			c.packs[p.Digest.String()] = true
		}
		s.store = c
		out, table := emptyFile(t, "ram"), emptyFile(t, "table")
		if err := s.Fill(t.Context(), map[string]*os.File{"ram0": out, "disk0": emptyFile(t, "disk")}, FillOptions{Table: table}); err != nil {
			t.Fatal(err)
		}
		if sumFile(t, out) != sumFile(t, w.src.Spaces[0].File) {
			t.Fatalf("generation %d: RAM differs", n)
		}
		need, read := needed(s.index), uint64(c.read.Load())
		if read*100 > need*130 {
			t.Errorf("generation %d: a restore reads %d bytes of %d packs and needs %d: %.2f x", n, read, len(s.parts.packs), need, float64(read)/float64(need))
		}
		if len(s.parts.packs) > mostPacks+2 { // and those of this push
			t.Errorf("generation %d: %d packs", n, len(s.parts.packs))
		}
		if n > 0 {
			pushed += receipt.Figures.Pushed
		}
		t.Logf("generation %2d: %2d packs, %.2f x read, %5d KiB pushed", n, len(s.parts.packs), float64(read)/float64(need), receipt.Figures.Pushed>>10)
		w.src.Spaces[0].File = out
		for page := range size / format.PageSize {
			if rng.IntN(12) == 0 {
				changed += format.PageSize
				if _, err := out.WriteAt(randomBytes(rng, format.PageSize), int64(page)*format.PageSize); err != nil {
					t.Fatal(err)
				}
			}
		}
		if w.opts.Parent, err = OpenTable(table); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d MiB changed, %d MiB pushed", changed>>20, pushed>>20)
	if pushed > 5*changed {
		t.Errorf("%d bytes pushed for %d that changed", pushed, changed)
	}
}
