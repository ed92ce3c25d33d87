package precopy

// BlockPages is what one core takes at a time: 1 MiB.
const (
	BlockPages = 256
	blockSize  = BlockPages * pageSize
)

// mostChanges of a page in passes while the VM runs: it is left for the pause after that.
const mostChanges = 2

// Block is what is known of a part of an area. In a pass it belongs to one goroutine.
type Block struct {
	known   Mask // pages that were looked at, and are no hole since
	fresh   Mask // of them: looked at before the VM was restored, and not yet since
	due     Mask // pages that were written since they were looked at
	left    Mask // pages that keep changing: they are left for the pause
	changes [BlockPages]uint8
}

// Take notes that a page is looked at, in the pause if last is set. It reports whether the page
// was looked at before, since the VM was restored.
func (b *Block) Take(i int, last bool) (known bool) {
	known = b.known.Has(i) && !b.fresh.Has(i)
	b.known.Set(i)
	b.fresh.unset(i)
	if last {
		b.left.unset(i)
	}
	return known
}

// Defer reports whether a page that has changed keeps changing: it is left for the pause,
// as what was stored or sent of it would be dead.
func (b *Block) Defer(i int) bool {
	if b.changes[i] < mostChanges {
		b.changes[i]++
		return false
	}
	b.left.Set(i)
	return true
}

// Zeroed notes that a page that had data is zero.
func (b *Block) Zeroed(i int) { b.changes[i] = min(b.changes[i]+1, mostChanges) }

// forget makes pages such as were never seen.
func (b *Block) forget(pages *Mask) {
	_ = pages.Runs(func(from, to int) error {
		clear(b.changes[from:to])
		return nil
	})
	b.known, b.fresh, b.left = b.known.without(pages), b.fresh.without(pages), b.left.without(pages)
}

// Pages holds something of each page of areas, by block: the zero value until it is set. In a
// pass a block's pages belong to the goroutine that has the block.
type Pages[T any] struct{ areas [][]*[BlockPages]T }

// NewPages makes the one of these areas.
func NewPages[T any](areas []*Area) *Pages[T] {
	p := &Pages[T]{}
	for _, a := range areas {
		p.areas = append(p.areas, make([]*[BlockPages]T, len(a.blocks)))
	}
	return p
}

// Of a block.
func (p *Pages[T]) Of(a *Area, block int) *[BlockPages]T {
	all := p.areas[a.Number]
	if all[block] == nil {
		all[block] = new([BlockPages]T)
	}
	return all[block]
}

// Known is Of, but nil where none was set.
func (p *Pages[T]) Known(a *Area, block int) *[BlockPages]T { return p.areas[a.Number][block] }

// Clear makes pages of a block zero values.
func (p *Pages[T]) Clear(a *Area, block int, pages *Mask) {
	of := p.Known(a, block)
	if of == nil {
		return
	}
	_ = pages.Runs(func(from, to int) error {
		clear(of[from:to])
		return nil
	})
}

// Each calls do for every block of which something was set, by area and block.
func (p *Pages[T]) Each(do func(area, block int, pages *[BlockPages]T)) {
	for n, blocks := range p.areas {
		for i, pages := range blocks {
			if pages != nil {
				do(n, i, pages)
			}
		}
	}
}
