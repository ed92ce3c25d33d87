package snapshot

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
)

// each calls do for every page that is not zero, by space and page.
func (c *capture) each(do func(space int, page uint64, m *mark)) {
	c.marks.Each(func(area, block int, marks *[precopy.BlockPages]mark) {
		for i := range marks {
			if marks[i].frame != nil {
				do(area, uint64(block)*precopy.BlockPages+uint64(i), &marks[i])
			}
		}
	})
}

// tally finds out which frames are in use, and how much of each pack. Frames that came out of
// the coder only: others have no pack.
func (c *capture) tally() {
	for f := range c.frames() { // a table may have served an attempt before
		f.slots, f.pack.live, f.pack.pages, f.pack.read = 0, 0, 0, 0
	}
	c.each(func(_ int, _ uint64, m *mark) { m.frame.slots |= 1 << m.slot })
	for f := range c.frames() {
		f.count()
	}
}

// frames yields those that have a pack, each once.
func (c *capture) frames() iter.Seq[*frame] {
	return func(yield func(*frame) bool) {
		for _, f := range c.packer.frames {
			if !yield(f) {
				return
			}
		}
		for f := range c.inherited() {
			if !yield(f) {
				return
			}
		}
	}
}

// inheritedPacks are those of tables, each once.
func (c *capture) inheritedPacks() (list []*pack) {
	seen := map[*pack]bool{}
	for _, t := range c.push.tables() {
		for _, p := range t.packs {
			if !seen[p] {
				seen[p] = true
				list = append(list, p)
			}
		}
	}
	return list
}

// inherited yields the frames of tables.
func (c *capture) inherited() iter.Seq[*frame] {
	return func(yield func(*frame) bool) {
		for _, t := range c.push.tables() {
			for i := range t.frames {
				if f := &t.frames[i]; t.frame(uint32(i)) == f && !yield(f) {
					return
				}
			}
		}
	}
}

func (f *frame) count() {
	if f.slots != 0 {
		pages := uint64(bits.OnesCount16(f.slots))
		f.pack.live += max(1, uint64(f.Stored)*pages/uint64(f.Pages))
		f.pack.pages += pages
	}
}

// index numbers packs and frames and writes down where every page is. Packs and frames of
// which nothing is in use are left out.
func (c *capture) index() (*format.Index, []*pack) {
	if !c.tallied {
		c.tally()
	}
	x := &format.Index{}
	var frames []*frame
	var packs []*pack
	take := func(all []*pack) {
		for _, p := range all {
			if p.live > 0 {
				p.number = len(packs)
				packs = append(packs, p)
				x.Packs = append(x.Packs, p.Pack)
			}
		}
	}
	take(c.packer.packs)
	for _, p := range c.packer.packs {
		c.push.receipt.Dead += p.Size - p.live
	}
	for _, f := range c.packer.frames {
		if f.slots != 0 {
			frames = append(frames, f)
			c.push.config.Figures.New += uint64(bits.OnesCount16(f.slots)) * format.PageSize
		}
	}
	take(c.inheritedPacks())
	if c.push.again != nil {
		for _, p := range c.push.again.packs {
			c.push.receipt.Again += p.live
		}
	}
	for f := range c.inherited() {
		if f.slots != 0 {
			frames = append(frames, f)
		}
	}
	slices.SortFunc(frames, func(a, b *frame) int {
		return cmp.Or(cmp.Compare(a.pack.number, b.pack.number), cmp.Compare(a.Offset, b.Offset))
	})
	for i, f := range frames {
		f.number, f.Pack = uint32(i), uint32(f.pack.number)
		x.Frames = append(x.Frames, f.Frame)
	}
	for _, s := range c.push.config.Spaces {
		x.Spaces = append(x.Spaces, format.Space{Name: s.Name, Size: uint64(s.Size)})
	}
	c.each(func(space int, page uint64, m *mark) {
		c.push.config.Figures.Resident += format.PageSize
		runs := &x.Spaces[space].Runs
		if n := len(*runs); n > 0 {
			l := &(*runs)[n-1]
			if l.Frame == m.frame.number && l.Page+uint64(l.Count) == page && l.Slot+l.Count == m.slot {
				l.Count++
				return
			}
		}
		*runs = append(*runs, format.Run{Page: page, Frame: m.frame.number, Slot: m.slot, Count: 1})
	})
	return x, packs
}
