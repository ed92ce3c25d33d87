package snapshot

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
)

// capture reads the data of all spaces once:
//
//	extents -> chunks -> zero test -> known? -> frames -> packs -> uploads
//
// Chunks are spread over the cores; everything from there to the frame happens in one
// goroutine per core, so that a page is touched while it is in the core's cache.
type capture struct {
	*push
	ctx     context.Context
	packer  *packer
	seen    *seen
	readers []*reader

	resident, fresh, done, total atomic.Uint64
}

// chunkSize is what a reader takes at a time: long enough to make the pread cheap.
const chunkSize = 1 << 20

type chunk struct {
	space  int
	offset int64
	size   int
}

func newCapture(p *push, g *errgroup.Group, ctx context.Context) *capture {
	return &capture{push: p, ctx: ctx, packer: newPacker(p, g, ctx), seen: newSeen(p.o.Parent)}
}

// run returns when the last page has been read.
func (c *capture) run() error {
	g, ctx := errgroup.WithContext(c.ctx)
	chunks := make(chan chunk, 2*runtime.GOMAXPROCS(0))
	g.Go(func() error {
		defer close(chunks)
		return c.scan(ctx, chunks)
	})
	for range runtime.GOMAXPROCS(0) {
		r := &reader{capture: c, buf: make([]byte, chunkSize), raw: make([]byte, 0, format.MaxFrame)}
		c.readers = append(c.readers, r)
		g.Go(func() error { return r.run(ctx, chunks) })
	}
	return g.Wait()
}

// finish stores what the readers still hold.
func (c *capture) finish() error {
	for _, r := range c.readers {
		if err := r.flush(); err != nil {
			return err
		}
		r.coder.Close()
	}
	return c.packer.close()
}

// scan sends the data of every space. Holes are not read: a read of a hole of a shared
// mapping would allocate it.
func (c *capture) scan(ctx context.Context, chunks chan<- chunk) error {
	for i, s := range c.src.Spaces {
		size := c.config.Spaces[i].Size
		err := extents(s.File, size, func(offset, end int64) error {
			c.total.Add(uint64(end - offset))
			for ; offset < end; offset += chunkSize {
				select {
				case chunks <- chunk{space: i, offset: offset, size: int(min(chunkSize, end-offset))}:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("scan %s: %w", s.Name, err)
		}
	}
	return nil
}

// reader is what one core does.
type reader struct {
	*capture
	coder format.Coder
	buf   []byte // one chunk
	cmp   [format.PageSize]byte
	hash  hasher

	raw    []byte // pages of the frame under way
	frame  *frame
	places [format.MaxSpaces][]place
}

// place says that count pages from page on are a frame's from slot on.
type place struct {
	page  uint64
	frame *frame
	slot  uint8
	count uint8
}

func (r *reader) run(ctx context.Context, chunks <-chan chunk) error {
	r.frame = new(frame)
	r.hash = r.seen.hasher()
	for {
		select {
		case ch, ok := <-chunks:
			if !ok {
				return nil
			}
			if err := r.chunk(ch); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *reader) chunk(ch chunk) error {
	s := r.src.Spaces[ch.space]
	size := (ch.size + format.PageSize - 1) / format.PageSize * format.PageSize
	buf := r.buf[:size]
	clear(buf[ch.size:]) // the last page of a disk may be partial
	if _, err := s.File.ReadAt(buf[:ch.size], ch.offset); err != nil {
		return fmt.Errorf("read %s at %d: %w", s.Name, ch.offset, err)
	}
	page := uint64(ch.offset / format.PageSize)
	for ; len(buf) > 0; buf, page = buf[format.PageSize:], page+1 {
		if err := r.page(ch.space, page, buf[:format.PageSize]); err != nil {
			return err
		}
	}
	done := r.done.Add(uint64(ch.size))
	r.o.Progress(Progress{Step: "capture", Done: done, Total: r.total.Load()})
	return nil
}

func (r *reader) page(space int, page uint64, data []byte) error {
	if isZero(data) {
		return nil
	}
	r.resident.Add(format.PageSize)
	sum := xxh3.HashSeed(data, r.seen.seed)
	if f, slot := r.seen.inParent(&r.hash, sum, data); f != nil {
		r.place(space, page, f, slot)
		return nil
	}
	slot := uint8(len(r.raw) / format.PageSize)
	if o, ok := r.seen.claim(sum, origin{space: uint8(space), page: page, frame: r.frame, slot: slot}); ok {
		same, err := r.same(o, data)
		if err != nil {
			return err
		}
		if same {
			r.place(space, page, o.frame, o.slot)
			return nil
		}
	}
	r.fresh.Add(format.PageSize)
	r.raw = append(r.raw, data...)
	r.place(space, page, r.frame, slot)
	if len(r.raw) == format.MaxFrame {
		return r.flush()
	}
	return nil
}

// same compares with the page that was seen first: a fast hash finds candidates, bytes
// decide, because a guest can make hashes collide.
func (r *reader) same(o origin, data []byte) (bool, error) {
	s := r.src.Spaces[o.space]
	offset := int64(o.page) * format.PageSize
	n := min(format.PageSize, int(r.config.Spaces[o.space].Size-offset))
	clear(r.cmp[n:])
	if _, err := s.File.ReadAt(r.cmp[:n], offset); err != nil {
		return false, fmt.Errorf("read %s at %d: %w", s.Name, offset, err)
	}
	return r.cmp == [format.PageSize]byte(data), nil
}

func (r *reader) place(space int, page uint64, f *frame, slot uint8) {
	list := r.places[space]
	if n := len(list); n > 0 {
		if l := &list[n-1]; l.frame == f && l.page+uint64(l.count) == page && l.slot+l.count == slot {
			l.count++
			return
		}
	}
	r.places[space] = append(list, place{page: page, frame: f, slot: slot, count: 1})
}

func (r *reader) flush() error {
	if len(r.raw) == 0 {
		return nil
	}
	stored, f, err := r.coder.Encode(r.o.Codec, r.raw)
	if err != nil {
		return err
	}
	r.frame.Frame = f
	err = r.packer.add(r.frame, stored)
	r.frame, r.raw = new(frame), r.raw[:0]
	return err
}

func isZero(page []byte) bool {
	return [format.PageSize]byte(page) == [format.PageSize]byte{}
}

// extents calls do for each range of f that may hold data, in whole pages but for the
// last.
func extents(f *os.File, size int64, do func(offset, end int64) error) error {
	var next int64
	for next < size {
		data, hole, err := nextData(f, next)
		if err != nil {
			return err
		}
		if data < 0 || data >= size {
			return nil
		}
		start := max(next, data/format.PageSize*format.PageSize)
		end := min(size, (hole+format.PageSize-1)/format.PageSize*format.PageSize)
		if err := do(start, end); err != nil {
			return err
		}
		next = end
	}
	return nil
}
