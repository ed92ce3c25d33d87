package snapshot

import (
	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/snapshot/format"
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
	first := make([]uint32, len(t.frames)+1)
	for i := range t.frames {
		first[i+1] = first[i] + uint32(t.frames[i].Pages)
	}
	entries := make([]uint32, first[len(t.frames)]) // by frame and slot: entry + 1; 0: none
	for i, e := range t.entries {
		entries[first[e.Frame]+e.Slot] = uint32(i) + 1
	}
	for _, a := range c.pre.Areas {
		for _, before := range t.spaces {
			if before.Name != a.Name || before.Size != uint64(a.Size) {
				continue
			}
			for _, r := range before.Runs {
				if !t.frames[r.Frame].pack.dropped {
					c.inheritRun(a, t, r, entries[first[r.Frame]+uint32(r.Slot):])
				}
			}
		}
	}
}

// inheritRun takes over a run, with the entries of its pages.
func (c *capture) inheritRun(a *precopy.Area, t *Table, r format.Run, entries []uint32) {
	for k := range r.Count {
		at := entries[k]
		if at == 0 {
			continue
		}
		e, page := &t.entries[at-1], r.Page+uint64(k)
		marks := c.marks.Of(a, int(page/precopy.BlockPages))
		marks[page%precopy.BlockPages] = mark{sum: xxh3.Uint128{Lo: e.Sum, Hi: e.More}, frame: &t.frames[r.Frame],
			slot: r.Slot + k}
		a.Inherit(page)
	}
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
