package stream

import (
	"os"
	"slices"
	"sync/atomic"

	"godwit.dev/godwit/snapshot/format"
)

// Base is what RAM was in the snapshot that the page table is of.
type Base interface {
	// Has reports whether the table has a page, and Same whether with that content.
	Has(page uint64) bool
	Same(page uint64, data []byte) bool
}

// Written are the parts of RAM that may be other than in the snapshot of the page table, in order.
type Written struct {
	Parts []Part `json:"parts,omitempty"`
}

// Part is of the RAM file.
type Part struct {
	Offset int64 `json:"offset"`
	End    int64 `json:"end"`
}

// mostParts bounds those of Written: what lies between two that are near counts as written, too. In the pause each
// costs a call.
const mostParts = 1024

// since finds out what was written to RAM, the first space, since the snapshot of the page table. A page is unwritten
// only where what came last is what the table has.
type since struct {
	base  atomic.Pointer[Base] // nil: it is not known what RAM was
	pages uint64
	same  []atomic.Uint64 // a bit for each page
}

// begin is called once the table is whole. Pages that came before count as written.
func (s *since) begin(t *Target, table *os.File) {
	if t.Base == nil || table == nil || len(t.Spaces) == 0 {
		return
	}
	base := t.Base(table)
	if base == nil {
		return
	}
	s.pages = uint64(t.Spaces[0].Size+format.PageSize-1) / format.PageSize
	s.same = make([]atomic.Uint64, (s.pages+63)/64)
	s.base.Store(&base)
}

// came notes pages of RAM that have been written to its file.
func (s *since) came(page uint64, data []byte) {
	base := s.base.Load()
	if base == nil {
		return
	}
	for ; len(data) >= format.PageSize && page < s.pages; page++ {
		s.set(page, (*base).Same(page, data[:format.PageSize]))
		data = data[format.PageSize:]
	}
}

// zeros notes pages of RAM that have no content: no table has them.
func (s *since) zeros(page, count uint64) {
	if s.base.Load() == nil {
		return
	}
	for end := min(page+count, s.pages); page < end; page++ {
		s.set(page, false)
	}
}

func (s *since) set(page uint64, same bool) {
	if bit := uint64(1) << (page % 64); same {
		s.same[page/64].Or(bit)
	} else {
		s.same[page/64].And(^bit)
	}
}

// written answers nil where it is not known.
func (s *since) written() *Written {
	base := s.base.Load()
	if base == nil {
		return nil
	}
	w := &Written{}
	for page := range s.pages {
		if !(*base).Has(page) || s.same[page/64].Load()&(1<<(page%64)) != 0 {
			continue
		}
		at := int64(page) * format.PageSize
		w.add(Part{at, at + format.PageSize}, 0)
	}
	if len(w.Parts) > mostParts {
		w.join()
	}
	return w
}

// join makes one of parts that have least between them.
func (w *Written) join() {
	parts, gaps := w.Parts, make([]int64, 0, len(w.Parts))
	for i := range parts[1:] {
		gaps = append(gaps, parts[i+1].Offset-parts[i].End)
	}
	slices.Sort(gaps)
	w.Parts = nil
	for _, p := range parts {
		w.add(p, gaps[len(gaps)-mostParts])
	}
}

// add joins a part with the one before it where not more than gap is between them.
func (w *Written) add(p Part, gap int64) {
	if n := len(w.Parts); n > 0 && p.Offset-w.Parts[n-1].End <= gap {
		w.Parts[n-1].End = p.End
		return
	}
	w.Parts = append(w.Parts, p)
}
