package snapshot

import (
	"context"
	"fmt"
	"runtime"

	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// SpaceDiff counts pages of an address space. A page of zeros is nothing.
type SpaceDiff struct {
	Name     string `json:"name"`
	FromSize uint64 `json:"fromSize"` // bytes; 0: the snapshot has no such space
	ToSize   uint64 `json:"toSize"`
	Same     uint64 `json:"same"`
	Changed  uint64 `json:"changed"`
	Added    uint64 `json:"added"`   // zeros before
	Removed  uint64 `json:"removed"` // zeros after
}

// Diff compares two snapshots page by page. Pages that lie in one place, or in frames of
// the same hash, are equal without being read; of the others the content decides.
func Diff(ctx context.Context, from, to *Snapshot) ([]SpaceDiff, error) {
	var list []SpaceDiff
	for _, name := range spaceNames(from.index, to.index) {
		a, b := placed(from.index, name), placed(to.index, name)
		d := SpaceDiff{Name: name, FromSize: a.size, ToSize: b.size}
		for page, at := range b.pages {
			was, ok := a.pages[page]
			switch {
			case !ok:
				d.Added++
				delete(b.pages, page)
			case same(from.index, was, to.index, at):
				d.Same++
				delete(a.pages, page)
				delete(b.pages, page)
			}
		}
		for page := range a.pages {
			if _, ok := b.pages[page]; !ok {
				d.Removed++
				delete(a.pages, page)
			}
		}
		before, err := from.hashes(ctx, a.pages)
		if err != nil {
			return nil, fmt.Errorf("compare snapshot %s: %w", from.Digest, err)
		}
		after, err := to.hashes(ctx, b.pages)
		if err != nil {
			return nil, fmt.Errorf("compare snapshot %s: %w", to.Digest, err)
		}
		for page, hash := range after {
			if hash == before[page] {
				d.Same++
			} else {
				d.Changed++
			}
		}
		list = append(list, d)
	}
	return list, nil
}

// spot is where a page lies.
type spot struct {
	frame uint32
	slot  uint8
}

// space says where the pages of an address space lie.
type space struct {
	size  uint64
	pages map[uint64]spot
}

func placed(x *format.Index, name string) space {
	s := space{pages: map[uint64]spot{}}
	for _, sp := range x.Spaces {
		if sp.Name != name {
			continue
		}
		s.size = sp.Size
		for _, r := range sp.Runs {
			for i := range r.Count {
				s.pages[r.Page+uint64(i)] = spot{r.Frame, r.Slot + i}
			}
		}
	}
	return s
}

func spaceNames(a, b *format.Index) (names []string) {
	known := map[string]bool{}
	for _, x := range []*format.Index{a, b} {
		for _, sp := range x.Spaces {
			if !known[sp.Name] {
				known[sp.Name] = true
				names = append(names, sp.Name)
			}
		}
	}
	return names
}

// same: frames of one hash have the same bytes, whatever their packs.
func same(a *format.Index, at spot, b *format.Index, bt spot) bool {
	return at.slot == bt.slot && a.Frames[at.frame].BLAKE3 == b.Frames[bt.frame].BLAKE3 &&
		a.Frames[at.frame].Codec == b.Frames[bt.frame].Codec
}

// hashes reads pages and answers a hash of each that no guest can make collide.
func (s *Snapshot) hashes(ctx context.Context, pages map[uint64]spot) (map[uint64][32]byte, error) {
	byFrame := map[uint32][]uint64{}
	wanted := map[int]bool{}
	for page, at := range pages {
		byFrame[at.frame] = append(byFrame[at.frame], page)
		wanted[int(s.index.Frames[at.frame].Pack)] = true
	}
	sums := make(map[uint64][32]byte, len(pages))
	results := make(chan map[uint64][32]byte)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, runtime.GOMAXPROCS(0)))
	go func() {
		for pack := range wanted {
			g.Go(func() error {
				part, err := s.packHashes(ctx, pack, byFrame, pages)
				if err == nil {
					results <- part
				}
				return err
			})
		}
		_ = g.Wait()
		close(results)
	}()
	for part := range results {
		for page, sum := range part {
			sums[page] = sum
		}
	}
	return sums, g.Wait()
}

func (s *Snapshot) packHashes(ctx context.Context, pack int, byFrame map[uint32][]uint64,
	pages map[uint64]spot) (map[uint64][32]byte, error) {
	d := s.parts.packs[pack]
	data, err := store.ReadRetried(ctx, s.store, d.Digest, d.Size)
	if err != nil {
		return nil, store.Lost("pack", d, err)
	}
	coder := format.Coder{Key: s.keys[pack]}
	defer coder.Close()
	sums := map[uint64][32]byte{}
	first, end := s.index.PackFrames(pack)
	for i := first; i < end; i++ {
		list := byFrame[uint32(i)]
		if len(list) == 0 {
			continue
		}
		f := &s.index.Frames[i]
		raw, err := coder.Decode(f, data[f.Offset:f.Offset+f.Stored])
		if err != nil {
			return nil, fmt.Errorf("pack %s: %w", d.Digest, err)
		}
		for _, page := range list {
			slot := int(pages[page].slot)
			sums[page] = blake3.Sum256(raw[slot*format.PageSize : (slot+1)*format.PageSize])
		}
	}
	return sums, nil
}
