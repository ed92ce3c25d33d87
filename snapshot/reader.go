package snapshot

import (
	"fmt"

	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/snapshot/format"
)

// reader is what one core does.
type reader struct {
	*capture
	coder format.Coder
	pages blockReader
	copy  [format.PageSize]byte
	cmp   [format.PageSize]byte
	hash  []hasher // by table
	proof hasher   // with the key of table

	raw    []byte // pages of the frame under way
	frame  *frame
	last   bool
	passed passed
}

// most changes of a page in live passes: it is left for the pause then.
const mostChanges = 2

func (r *reader) begin(last bool) { r.passed, r.last = passed{}, last }

func (r *reader) end() (passed, error) { return r.passed, nil }

func (r *reader) block(it item) error {
	s, b := it.space, it.space.blocks[it.number]
	base := int64(it.number) * blockSize
	err := it.pages.runs(func(from, to int) error {
		data, err := r.pages.read(s, b, base, from, to)
		if err != nil {
			return fmt.Errorf("read %s at %d: %w", s.Name, base+int64(from)*format.PageSize, err)
		}
		for i := from; i < to; i++ {
			at := (i - from) * format.PageSize
			if err := r.page(s, base, b, i, data[at:at+format.PageSize]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.note(r.step(s), it.pages.count())
	return nil
}

// step of a push, for people.
func (r *reader) step(s *area) string {
	switch {
	case !r.last:
		return "precopy"
	case s.cloned:
		return "clone"
	case s.Disk != "":
		return "disk"
	}
	return "capture"
}

// page looks at one page. What is stored is never a page that changes while it is looked
// at: of a running VM a copy is taken, and hashed again.
func (r *reader) page(s *area, base int64, b *block, i int, data []byte) error {
	m, known := &b.marks[i], b.known.has(i) && !b.fresh.has(i)
	b.known.set(i)
	b.fresh[i/64] &^= 1 << (i % 64)
	r.passed.looked++
	if r.last {
		b.left[i/64] &^= 1 << (i % 64)
	}
	if !isZero(data) {
		moving := !r.last && s.mem != nil
		if moving && m.frame == nil { // it will be stored
			copy(r.copy[:], data)
			data, moving = r.copy[:], false
		}
		sum := xxh3.Hash128Seed(data, r.seen.seed)
		if m.frame != nil && m.sum == sum {
			if m.frame.again { // no table finds it for the pages that are like it
				r.seen.claim(origin{sum: sum, space: s, offset: base + int64(i)*format.PageSize, frame: m.frame, slot: m.slot})
			}
			return nil
		}
		if known && !r.last && b.leave(i) {
			r.passed.left++
			return nil
		}
		if moving {
			copy(r.copy[:], data)
			data = r.copy[:]
			sum = xxh3.Hash128Seed(data, r.seen.seed)
		}
		if !isZero(data) {
			r.passed.changed++
			return r.store(s, base, m, i, sum, data)
		}
	}
	if m.frame != nil {
		r.passed.changed++
		m.changes = min(m.changes+1, mostChanges)
	}
	*m = mark{changes: m.changes}
	return nil
}

func (r *reader) store(s *area, base int64, m *mark, i int, sum xxh3.Uint128, data []byte) error {
	m.sum = sum
	if f, slot := r.seen.stored(r.hash, sum.Lo, data); f != nil {
		m.frame, m.slot = f, slot
		return nil
	}
	slot := uint8(len(r.raw) / format.PageSize)
	mine := origin{sum: sum, space: s, offset: base + int64(i)*format.PageSize, frame: r.frame, slot: slot}
	if o, ok := r.seen.claim(mine); ok {
		same, err := r.same(o, sum, data)
		if err != nil {
			return err
		}
		if same {
			m.frame, m.slot = o.frame, o.slot
			return nil
		}
		r.seen.replace(mine)
	}
	r.finished.met(r.frame, place{sum, s, uint64(mine.offset) / format.PageSize})
	r.raw = append(r.raw, data...)
	m.frame, m.slot = r.frame, slot
	if len(r.raw) == format.MaxFrame {
		return r.flush()
	}
	return nil
}

// same compares with the page that was seen first: a fast hash finds candidates, bytes
// decide, because a guest can make hashes collide. A page that has changed since proves
// nothing.
func (r *reader) same(o origin, sum xxh3.Uint128, data []byte) (bool, error) {
	if o.sum != sum || o.frame.dropped {
		return false, nil
	}
	if o.space.mem != nil && o.offset+format.PageSize <= o.space.size {
		if !o.space.stillThere(o.offset) {
			return false, nil
		}
		return [format.PageSize]byte(o.space.mem[o.offset:o.offset+format.PageSize]) == [format.PageSize]byte(data), nil
	}
	n := min(format.PageSize, int(o.space.size-o.offset))
	clear(r.cmp[n:])
	if _, err := o.space.File.ReadAt(r.cmp[:n], o.offset); err != nil {
		return false, fmt.Errorf("read %s at %d: %w", o.space.Name, o.offset, err)
	}
	return r.cmp == [format.PageSize]byte(data), nil
}

// stillThere reports whether a page had data when this pass began.
func (s *area) stillThere(offset int64) bool {
	return s.data[offset/blockSize].has(int(offset % blockSize / format.PageSize))
}

// flush ends the frame under way. In the last pass it waits to be encoded as long as there
// is memory: the VM stands still.
func (r *reader) flush() error {
	if len(r.raw) == 0 {
		return nil
	}
	if r.last && r.room.Add(-format.MaxFrame) >= 0 {
		r.lateMu.Lock()
		r.late = append(r.late, lateFrame{r.frame, r.raw})
		r.lateMu.Unlock()
		r.frame, r.raw = new(frame), make([]byte, 0, format.MaxFrame)
		return nil
	} else if r.last {
		r.room.Add(format.MaxFrame)
		r.passed.inside += uint64(len(r.raw))
	}
	return r.encode(&r.frame, &r.raw)
}

// encode stores a frame, and makes place for the next one.
func (r *reader) encode(f **frame, raw *[]byte) error {
	if len(*raw) == 0 {
		return nil
	}
	stored, encoded, err := r.coder.Encode(r.packer.codec(), *raw)
	if err != nil {
		return err
	}
	(*f).Frame = encoded
	r.table.prove(*f, &r.proof, *raw)
	err = r.packer.add(*f, stored)
	*f, *raw = new(frame), (*raw)[:0]
	return err
}

func isZero(page []byte) bool {
	return [format.PageSize]byte(page) == [format.PageSize]byte{}
}
