package snapshot

import (
	"os"

	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/precopy"
)

// inherit notes what each page was when the VM was restored. Whether it is still the same
// is then found out as between two looks of one capture: by a hash of 128 bits whose seed
// the guest does not know. That is for the VM's own pages at their own places only; a page
// found elsewhere, or in another's snapshot, is proved equal.
func (c *capture) inherit(t *Table) {
	if t == nil {
		return
	}
	places := t.places()
	for _, a := range c.pre.Areas {
		places.each(a.Name, uint64(a.Size), func(page uint64, e *pagetable.Entry, r format.Run, slot uint8) {
			if t.frames[r.Frame].pack.dropped {
				return
			}
			marks := c.marks.Of(a, int(page/precopy.BlockPages))
			marks[page%precopy.BlockPages] = mark{sum: e.Whole(), frame: &t.frames[r.Frame], slot: slot}
			a.Inherit(page)
		})
	}
}

// places finds the entries of a table by the place of their pages.
type places struct {
	t       *Table
	first   []uint32 // by frame: where it begins in entries
	entries []uint32 // by frame and slot: entry + 1; 0: none
}

func (t *Table) places() *places {
	p := &places{t: t, first: make([]uint32, len(t.frames)+1)}
	for i := range t.frames {
		p.first[i+1] = p.first[i] + uint32(t.frames[i].Pages)
	}
	p.entries = make([]uint32, p.first[len(t.frames)])
	for i, e := range t.entries {
		p.entries[p.first[e.Frame]+e.Slot] = uint32(i) + 1
	}
	return p
}

// each calls found for the pages of a space that have an entry. A space of another size is another one.
func (p *places) each(name string, size uint64, found func(page uint64, e *pagetable.Entry, r format.Run,
	slot uint8)) {
	for _, s := range p.t.spaces {
		if s.Name != name || s.Size != size {
			continue
		}
		for _, r := range s.Runs {
			for k := range r.Count {
				if at := p.entries[p.first[r.Frame]+uint32(r.Slot)+uint32(k)]; at != 0 {
					found(r.Page+uint64(k), &p.t.entries[at-1], r, r.Slot+k)
				}
			}
		}
	}
}

// Base is what each page of RAM was in the snapshot that a page table is of, by its sum.
type Base struct {
	seed uint64
	sums []xxh3.Uint128 // by page
	has  []bool
}

// OpenBase reads the sums of a space from a page table.
func OpenBase(table *os.File, space string, size int64) (*Base, error) {
	t, err := OpenTable(table)
	if err != nil {
		return nil, err
	}
	pages := (size + format.PageSize - 1) / format.PageSize
	b := &Base{seed: t.seed, sums: make([]xxh3.Uint128, pages), has: make([]bool, pages)}
	t.places().each(space, uint64(size), func(page uint64, e *pagetable.Entry, _ format.Run, _ uint8) {
		b.sums[page], b.has[page] = e.Whole(), true
	})
	return b, nil
}

// Has implements stream.Base.
func (b *Base) Has(page uint64) bool { return b.has[page] }

// Same implements stream.Base.
func (b *Base) Same(page uint64, data []byte) bool {
	return b.has[page] && b.sums[page] == xxh3.Hash128Seed(data, b.seed)
}

// sampleEvery: one block in so many is looked at for an estimate.
const sampleEvery = 32

// changedPages estimates how many pages of RAM are other ones than when the VM was restored.
// Nothing is known if it was not.
func (c *capture) changedPages() (changed uint64, known bool) {
	ram := c.pre.RAM()
	if !ram.Inherited() {
		return 0, false
	}
	r := c.readers[0]
	err := c.pre.Sample(sampleEvery, func(block, from, to int) error {
		marks := c.marks.Known(ram, block)
		if marks == nil {
			changed += uint64(to - from)
			return nil
		}
		data, err := r.pages.Read(ram, block, from, to)
		if err != nil {
			return err
		}
		for i := from; i < to; i++ {
			page := data[(i-from)*format.PageSize:][:format.PageSize]
			if m := &marks[i]; (m.frame != nil || !format.IsZero(page)) && m.sum != r.sum(page) {
				changed++
			}
		}
		return nil
	})
	return changed * sampleEvery, err == nil
}
