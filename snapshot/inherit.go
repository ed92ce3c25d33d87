package snapshot

import (
	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/snapshot/format"
)

// inherit notes what each page was when the VM was restored. Whether it is still the same
// is then found out as between two looks of one capture: by a hash of 128 bits whose seed
// the guest does not know. That is for the VM's own pages at their own places only; a page
// found elsewhere, or in another's snapshot, is proved equal.
func (c *capture) inherit(t *Table) {
	if t == nil {
		return
	}
	first := make([]uint32, len(t.frames)+1)
	for i := range t.frames {
		first[i+1] = first[i] + uint32(t.frames[i].Pages)
	}
	entries := make([]uint32, first[len(t.frames)]) // by frame and slot: entry + 1; 0: none
	for i, e := range t.entries {
		entries[first[e.Frame]+e.Slot] = uint32(i) + 1
	}
	for _, s := range c.spaces {
		for _, before := range t.spaces {
			if before.Name != s.Name || before.Size != uint64(s.size) {
				continue
			}
			for _, r := range before.Runs {
				if !t.frames[r.Frame].pack.dropped {
					s.inherit(t, r, entries[first[r.Frame]+uint32(r.Slot):])
				}
			}
		}
	}
}

// inherit of a run, with the entries of its pages.
func (s *area) inherit(t *Table, r format.Run, entries []uint32) {
	for k := range r.Count {
		at := entries[k]
		if at == 0 {
			continue
		}
		e, page := &t.entries[at-1], r.Page+uint64(k)
		n, i := page/blockPages, int(page%blockPages)
		if s.blocks[n] == nil {
			s.blocks[n] = new(block)
		}
		b := s.blocks[n]
		b.marks[i] = mark{sum: xxh3.Uint128{Lo: e.Sum, Hi: e.More}, frame: &t.frames[r.Frame], slot: r.Slot + k}
		b.known.set(i)
		b.fresh.set(i)
		s.inherited = true
	}
}

// sampleEvery: one block in so many is looked at for an estimate.
const sampleEvery = 32

// changedPages estimates how many pages of RAM are other ones than when the VM was restored.
// Nothing is known if it was not.
func (c *capture) changedPages() (changed uint64, known bool) {
	s := c.ram()
	if !s.inherited || s.mem == nil || s.look(nil) != nil {
		return 0, false
	}
	r := c.readers[0]
	for n := 0; n < len(s.blocks); n += sampleEvery {
		_ = s.data[n].runs(func(from, to int) error {
			base := int64(n) * blockSize
			if base+int64(to)*format.PageSize > s.size {
				return nil
			}
			if s.blocks[n] == nil {
				changed += uint64(to - from)
				return nil
			}
			data, err := r.pages.read(s, s.blocks[n], base, from, to)
			if err != nil {
				return err
			}
			for i := from; i < to; i++ {
				page := data[(i-from)*format.PageSize:][:format.PageSize]
				if m := &s.blocks[n].marks[i]; (m.frame != nil || !isZero(page)) && m.sum != xxh3.Hash128Seed(page, r.seen.seed) {
					changed++
				}
			}
			return nil
		})
	}
	return changed * sampleEvery, true
}
