package snapshot

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/stream"
)

// lane looks at pages and sends those that the destination has otherwise. It belongs to
// one goroutine in a pass, and sends what it holds at the end of it.
type lane struct {
	*sender
	seed   uint64
	coder  format.Coder
	packet stream.Packet
	pages  blockReader
	last   bool
	passed passed

	space   int
	numbers []uint64
	raw     []byte
	zeros   [][2]uint64
}

// there marks a page of which the destination has something: no frame holds it.
var there = new(frame)

// newSeed makes hashes of pages such that a guest cannot know which are equal.
func newSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

func newLane(s *sender, seed uint64) *lane {
	return &lane{sender: s, seed: seed, raw: make([]byte, 0, format.MaxFrame)}
}

func (l *lane) begin(last bool) { l.passed, l.last = passed{}, last }

func (l *lane) end() (passed, error) { return l.passed, l.flush() }

func (l *lane) block(it item) error {
	a, b := it.space, it.space.blocks[it.number]
	if space := l.index(a); space != l.space {
		if err := l.flush(); err != nil {
			return err
		}
		l.space = space
	}
	base := int64(it.number) * blockSize
	err := it.pages.runs(func(from, to int) error {
		data, err := l.pages.read(a, b, base, from, to)
		if err != nil {
			return fmt.Errorf("read %s at %d: %w", a.Name, base+int64(from)*format.PageSize, err)
		}
		for i := from; i < to; i++ {
			at := (i - from) * format.PageSize
			if err := l.page(b, uint64(it.number)*blockPages, i, data[at:at+format.PageSize]); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		l.note(func(p *Progress) { p.Done += uint64(it.pages.count()) * format.PageSize })
	}
	return err
}

// page sends one page unless the destination has it as it is. What is sent and what is
// remembered of it are of one copy: a VM that runs may change it meanwhile.
func (l *lane) page(b *block, first uint64, i int, data []byte) error {
	m, known := &b.marks[i], b.known.has(i)
	b.known.set(i)
	l.passed.looked++
	if l.last {
		b.left[i/64] &^= 1 << (i % 64)
	}
	sum := func(page []byte) xxh3.Uint128 { return xxh3.Hash128Seed(page, l.seed) }
	if isZero(data) {
		return l.zero(m, first+uint64(i))
	}
	if known && m.frame != nil && m.sum == sum(data) {
		return nil
	}
	if known && !l.last && b.leave(i) {
		l.passed.left++
		return nil
	}
	at := len(l.raw)
	l.raw = append(l.raw, data...)
	page := l.raw[at:]
	if isZero(page) {
		l.raw = l.raw[:at]
		return l.zero(m, first+uint64(i))
	}
	l.passed.changed++
	m.sum, m.frame = sum(page), there
	l.numbers = append(l.numbers, first+uint64(i))
	if len(l.raw) == format.MaxFrame {
		return l.send()
	}
	return nil
}

func (l *lane) zero(m *mark, page uint64) error {
	if m.frame == nil {
		return nil // it was never anything else there
	}
	l.passed.changed++
	*m = mark{changes: min(m.changes+1, mostChanges)}
	l.zeros = addRun(l.zeros, page)
	return nil
}

func (l *lane) flush() error {
	if len(l.zeros) > 0 {
		if err := l.out.Zeros(l.ctx, l.space, l.zeros); err != nil {
			return err
		}
		l.zeros = l.zeros[:0]
	}
	return l.send()
}

// slowWire is below what compressing costs: to send less is faster then.
const slowWire = 400 << 20

func (l *lane) send() error {
	if len(l.raw) == 0 {
		return nil
	}
	codec := format.Raw
	if rate := l.out.Rate(); rate > 0 && rate < slowWire {
		codec = format.S2
	}
	err := l.out.Pages(l.ctx, &l.coder, &l.packet, codec, l.space, l.numbers, l.raw)
	l.numbers, l.raw = l.numbers[:0], l.raw[:0]
	return err
}
