package snapshot

import (
	"cmp"
	"slices"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/restore"
	"godwit.dev/godwit/snapshot/store"
)

// Bounds of what a restore fetches, in hundredths of the stored bytes of pages in use: with
// it comes what is dead in the same frames, and what lies between frames in use where that
// costs less than another request. Of this push's own packs it is less, so that the next
// ones have something left.
const (
	mostDead         = 25
	mostRead         = 26 // what is packed anew may come out a little larger: 30 is kept
	mostBeforePasses = 18 // where what the VM has changed is not known yet, and comes on top of it
)

// mostPacks that a snapshot names of which little is in use; with more of them, those that
// hold least are packed together: a VM that sleeps often and changes little adds a small one
// each time. Others are never given up for their number, since packing them anew makes as many.
// A variable for the tests.
var mostPacks = 128

// littleUse: of a pack is little in use if it is less than one part in so many of a full one.
// So many packs, at least, become one.
const littleUse = 4

// little reports that of what a pack may hold at most: bytes, or frames where these are short.
func (p *pack) little() bool {
	return p.live < format.PackSize/littleUse && p.pages < format.PackFrames*format.FramePages/littleUse
}

// drop gives up packs of which a restore would read too much that it does not need, more than
// most hundredths of what it does: their pages are such as were never seen. It answers how many packs.
func (c *capture) drop(most uint64) int {
	c.tally()
	c.reads()
	gone := map[*pack]bool{}
	dropCostly(c.packer.packs, mostDead, gone)
	all := append(slices.Clone(c.packer.packs), c.inheritedPacks()...)
	dropCostly(all, most, gone)
	dropSmallest(all, c.packer.open(), gone)
	if len(gone) == 0 {
		return 0
	}
	for f := range c.frames() {
		f.dropped = f.dropped || gone[f.pack] // for good: a pack that is dead is not asked about again
	}
	for p := range gone {
		p.dropped = true
	}
	c.marks.Each(func(area, block int, marks *[precopy.BlockPages]mark) {
		if pages := droppedPages(marks, gone); !pages.Empty() {
			a := c.pre.Areas[area]
			a.Forget(block, &pages)
			c.marks.Clear(a, block, &pages)
			c.push.receipt.Moved += uint64(pages.Count()) * format.PageSize
		}
	})
	return len(gone)
}

// dropCostly adds to gone those packs, the worst first, without which the rest is within the
// bound. What is in use of them is packed anew, without anything that is dead.
func dropCostly(packs []*pack, bound uint64, gone map[*pack]bool) {
	var list []*pack
	var read, live uint64
	for _, p := range packs {
		live += p.live
		if p.live > 0 && !gone[p] { // of another nothing is fetched
			list, read = append(list, p), read+p.read
		} else if gone[p] {
			read += p.live
		}
	}
	slices.SortStableFunc(list, func(a, b *pack) int { return cmp.Compare(a.live*b.read, b.live*a.read) })
	for _, p := range list {
		if read*100 <= live*(100+bound) {
			return
		}
		gone[p] = true
		read -= min(read, p.read-min(p.read, p.live))
	}
}

// dropSmallest adds to gone the packs that hold least, if of too many little is in use. What is in
// use of them goes into the pack that is open, if one is.
func dropSmallest(packs []*pack, open *pack, gone map[*pack]bool) {
	packs = slices.DeleteFunc(slices.Clone(packs), func(p *pack) bool { return p.live == 0 || gone[p] || !p.little() })
	if len(packs) <= mostPacks {
		return
	}
	slices.SortStableFunc(packs, func(a, b *pack) int { return cmp.Compare(a.live, b.live) })
	for _, p := range packs[:len(packs)-mostPacks/2] {
		if p != open {
			gone[p] = true
		}
	}
}

// reads finds out how many bytes of each pack a restore fetches.
func (c *capture) reads() {
	_, ranger := c.push.store.(store.Ranger)
	used := map[*pack][]*format.Frame{}
	for f := range c.frames() {
		if f.slots != 0 {
			used[f.pack] = append(used[f.pack], &f.Frame)
		}
	}
	for p, frames := range used {
		p.read = p.Size
		if ranger {
			slices.SortFunc(frames, func(a, b *format.Frame) int { return cmp.Compare(a.Offset, b.Offset) })
			p.read = restore.Fetches(frames, p.Size)
		}
	}
}

// droppedPages are those that lie in packs which are given up.
func droppedPages(marks *[precopy.BlockPages]mark, gone map[*pack]bool) (pages precopy.Mask) {
	for i := range marks {
		if f := marks[i].frame; f != nil && f.dropped && gone[f.pack] {
			pages.Set(i)
		}
	}
	return pages
}
