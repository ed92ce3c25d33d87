package snapshot

import (
	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/stream"
)

// lane looks at pages and sends those that the destination has otherwise. It belongs to
// one goroutine in a pass, and sends what it holds at the end of it.
type lane struct {
	s      *sender
	coder  format.Coder
	packet stream.Packet
	pages  precopy.Reader
	last   bool
	passed precopy.Count

	space   int // of numbers and zeros
	numbers []uint64
	raw     []byte
	zeros   [][2]uint64
}

// sentPage is what the destination has of a page.
type sentPage struct {
	sum   xxh3.Uint128
	there bool // false: zeros
}

func newLane(s *sender) *lane { return &lane{s: s, raw: make([]byte, 0, format.MaxFrame)} }

// Begin implements precopy.Worker.
func (l *lane) Begin(last bool) { l.passed, l.last = precopy.Count{}, last }

// End implements precopy.Worker.
func (l *lane) End() (precopy.Count, error) { return l.passed, l.flush() }

// Block implements precopy.Worker.
func (l *lane) Block(it precopy.Item) error {
	if it.Area.Number != l.space {
		if err := l.flush(); err != nil {
			return err
		}
		l.space = it.Area.Number
	}
	b, sent := it.Area.Block(it.Number), l.s.sent.Of(it.Area, it.Number)
	err := it.Each(&l.pages, func(i int, data []byte) error {
		return l.page(b, i, &sent[i], it.First()+uint64(i), data)
	})
	if err == nil {
		l.s.note(func(p *Progress) { p.Done += uint64(it.Pages.Count()) * format.PageSize })
	}
	return err
}

// page sends one page unless the destination has it as it is. What is sent and what is
// remembered of it are of one copy: a VM that runs may change it meanwhile.
func (l *lane) page(b *precopy.Block, i int, sent *sentPage, number uint64, data []byte) error {
	known := b.Take(i, l.last)
	l.passed.Looked++
	sum := func(page []byte) xxh3.Uint128 { return xxh3.Hash128Seed(page, l.s.seed) }
	if format.IsZero(data) {
		return l.zero(b, i, sent, number)
	}
	if known && sent.there && sent.sum == sum(data) {
		return nil
	}
	if known && !l.last && b.Defer(i) {
		l.passed.Left++
		return nil
	}
	at := len(l.raw)
	l.raw = append(l.raw, data...)
	page := l.raw[at:]
	if format.IsZero(page) {
		l.raw = l.raw[:at]
		return l.zero(b, i, sent, number)
	}
	l.passed.Changed++
	*sent = sentPage{sum(page), true}
	l.numbers = append(l.numbers, number)
	if len(l.raw) == format.MaxFrame {
		return l.send()
	}
	return nil
}

func (l *lane) zero(b *precopy.Block, i int, sent *sentPage, number uint64) error {
	if !sent.there {
		return nil // it was never anything else there
	}
	l.passed.Changed++
	*sent = sentPage{}
	b.Zeroed(i)
	l.zeros = addRun(l.zeros, number)
	return nil
}

func (l *lane) flush() error {
	if len(l.zeros) > 0 {
		if err := l.s.out.Zeros(l.s.ctx, l.space, l.zeros); err != nil {
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
	if rate := l.s.out.Rate(); rate > 0 && rate < slowWire {
		codec = format.S2
	}
	err := l.s.out.Pages(l.s.ctx, &l.coder, &l.packet, codec, l.space, l.numbers, l.raw)
	l.numbers, l.raw = l.numbers[:0], l.raw[:0]
	return err
}
