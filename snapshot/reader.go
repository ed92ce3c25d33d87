package snapshot

import (
	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/precopy"
)

// reader is what one core does.
type reader struct {
	c     *capture
	coder format.Coder
	pages precopy.Reader
	copy  [format.PageSize]byte
	cmp   [format.PageSize]byte
	hash  []pagetable.Hasher // by table
	proof pagetable.Hasher   // with the key of table

	raw    []byte // pages of the frame under way
	frame  *frame
	last   bool
	passed precopy.Count
}

// Begin implements precopy.Worker.
func (r *reader) Begin(last bool) { r.passed, r.last = precopy.Count{}, last }

// End implements precopy.Worker. The frame under way goes on in the next pass.
func (r *reader) End() (precopy.Count, error) { return r.passed, nil }

// Block implements precopy.Worker.
func (r *reader) Block(it precopy.Item) error {
	b, marks := it.Area.Block(it.Number), r.c.marks.Of(it.Area, it.Number)
	err := it.Each(&r.pages, func(i int, data []byte) error {
		return r.page(b, i, &marks[i], place{area: it.Area, page: it.First() + uint64(i)}, data)
	})
	if err != nil {
		return err
	}
	r.c.note(r.step(it.Area), it.Pages.Count())
	return nil
}

// step of a push, for people.
func (r *reader) step(a *precopy.Area) string {
	switch {
	case !r.last:
		return "precopy"
	case a.Cloned():
		return "clone"
	case a.Disk != "":
		return "disk"
	}
	return "capture"
}

// page looks at one page. What is stored is never a page that changes while it is looked
// at: of a running VM a copy is taken, and hashed again.
func (r *reader) page(b *precopy.Block, i int, m *mark, at place, data []byte) error {
	known := b.Take(i, r.last)
	r.passed.Looked++
	if !format.IsZero(data) {
		moving := !r.last && at.area.Mapped()
		if moving && m.frame == nil { // it will be stored
			copy(r.copy[:], data)
			data, moving = r.copy[:], false
		}
		at.sum = r.sum(data)
		if m.frame != nil && m.sum == at.sum {
			if m.frame.again { // no table finds it for the pages that are like it
				r.c.seen.claim(origin{at, m.frame, m.slot})
			}
			return nil
		}
		if known && !r.last && b.Defer(i) {
			r.passed.Left++
			return nil
		}
		if moving {
			copy(r.copy[:], data)
			data = r.copy[:]
			at.sum = r.sum(data)
		}
		if !format.IsZero(data) {
			r.passed.Changed++
			return r.store(m, at, data)
		}
	}
	if m.frame != nil {
		r.passed.Changed++
		b.Zeroed(i)
	}
	*m = mark{}
	return nil
}

func (r *reader) sum(page []byte) xxh3.Uint128 { return xxh3.Hash128Seed(page, r.c.seen.seed) }

func (r *reader) store(m *mark, at place, data []byte) error {
	m.sum = at.sum
	if f, slot := r.c.seen.stored(r.hash, at.sum.Lo, data); f != nil {
		m.frame, m.slot = f, slot
		return nil
	}
	slot := uint8(len(r.raw) / format.PageSize)
	mine := origin{at, r.frame, slot}
	if o, ok := r.c.seen.claim(mine); ok {
		same, err := o.same(at.sum, data, &r.cmp)
		if err != nil {
			return err
		}
		if same {
			m.frame, m.slot = o.frame, o.slot
			return nil
		}
		r.c.seen.replace(mine)
	}
	r.c.finished.met(r.frame, at)
	r.raw = append(r.raw, data...)
	m.frame, m.slot = r.frame, slot
	if len(r.raw) == format.MaxFrame {
		return r.flush()
	}
	return nil
}

// flush ends the frame under way. In the last pass it waits to be encoded as long as there
// is memory: the VM stands still.
func (r *reader) flush() error {
	if len(r.raw) == 0 {
		return nil
	}
	if r.last && r.c.late.take(deferredFrame{r.frame, r.raw}) {
		r.frame, r.raw = new(frame), make([]byte, 0, format.MaxFrame)
		return nil
	} else if r.last {
		r.passed.Inside += uint64(len(r.raw))
	}
	return r.encode(&r.frame, &r.raw)
}

// encode stores a frame, and makes place for the next one.
func (r *reader) encode(f **frame, raw *[]byte) error {
	if len(*raw) == 0 {
		return nil
	}
	stored, encoded, err := r.coder.Encode(r.c.packer.codec(), *raw)
	if err != nil {
		return err
	}
	(*f).Frame = encoded
	r.c.table.prove(*f, r.proof, *raw)
	err = r.c.packer.add(*f, stored)
	*f, *raw = new(frame), (*raw)[:0]
	return err
}
