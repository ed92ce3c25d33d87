package snapshot

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/precopy"
)

// capture looks at the pages of all spaces, in one pass, or in several while the VM runs
// (package precopy):
//
//	extents -> blocks -> changed? -> zero test -> known? -> frames -> packs -> uploads
//
// Blocks are spread over the cores. Everything from there to the frame happens in one goroutine per core, so that a
// page is touched while it is in the core's cache.
type capture struct {
	push    *push
	ctx     context.Context
	pre     *precopy.Precopy
	marks   *precopy.Pages[mark]
	packer  *packer
	seen    *knownPages
	readers []*reader

	finished *finished  // nil: nothing is kept for another push
	table    *nextTable // nil: none is made
	tallied  bool       // what tally finds out stands

	late deferredFrames
	done atomic.Uint64 // bytes of this pass
}

// mark is what was last seen of a page, and where that lies. No frame: the page was zero.
type mark struct {
	sum   xxh3.Uint128
	frame *frame
	slot  uint8
}

// mostPasses there are while the VM runs.
const mostPasses = 8

func newCapture(p *push, g *errgroup.Group, ctx context.Context) *capture {
	c := &capture{
		push: p, ctx: ctx, finished: p.finished, packer: newPacker(p, g, ctx),
		seen: newKnownPages(p.tables()), table: newNextTable(p.o.Next, p.tables()),
	}
	o := precopy.Options{Copy: c, Tracker: p.o.Tracker, Budget: p.o.Budget, Aim: p.o.Budget, Most: mostPasses,
		Clones: true}
	switch {
	case p.o.Live != nil && p.o.Still:
		o.Live = p.o.Live
	case p.o.Live != nil:
		o.Live = trimming{p.o.Live, c}
	}
	sizes := make([]int64, len(p.src.Spaces))
	for i := range sizes {
		sizes[i] = p.config.Spaces[i].Size
	}
	c.pre = precopy.New(p.src.Spaces, sizes, o)
	c.marks = precopy.NewPages[mark](c.pre.Areas)
	c.inherit(p.o.Parent)
	c.inherit(p.again)
	c.finished.begin(c.seen.seed)
	c.late.room = p.o.Memory - int64(packBuffers(p.o.Memory))*format.PackSize
	for range runtime.GOMAXPROCS(0) {
		r := &reader{c: c, frame: new(frame), raw: make([]byte, 0, format.MaxFrame)}
		r.hash, r.coder.Key = c.seen.hashers(), p.key
		if c.table != nil {
			r.proof = pagetable.NewHasher(c.table.key)
		}
		c.readers = append(c.readers, r)
		c.pre.Work(r)
	}
	return c
}

// run returns when the last page has been read.
func (c *capture) run() error {
	if err := c.pre.Open(); err != nil {
		return err
	}
	if c.push.o.Live != nil && c.push.o.Budget > 0 && c.push.o.Tracker == nil && !c.pre.NotesDisks() {
		if rest, known := c.changedPages(); known && c.pre.Fits(rest) {
			c.pre.AtOnce() // every page is compared in the pause anyway
		}
	}
	out, err := c.pre.Run(c.ctx)
	if err != nil || c.push.o.Live == nil {
		return err
	}
	c.push.config.Resume = out.Resume
	r := &c.push.receipt
	r.Passes, r.Untracked, r.Inside, r.Disks = out.Passes, out.Untracked, out.Inside, out.Disks
	return nil
}

// Begin implements precopy.Copy.
func (c *capture) Begin(s precopy.Scope) error {
	if !s.Last && s.Number > 0 {
		c.drop(mostRead)
	}
	c.done.Store(0)
	return nil
}

// End implements precopy.Copy: a pass lasts until its packs have left.
func (c *capture) End(s precopy.Scope) error {
	if !s.Last {
		return c.packer.drain()
	}
	c.push.receipt.Captured = time.Now()
	c.push.o.Captured()
	return nil
}

// Gone implements precopy.Copy.
func (c *capture) Gone(a *precopy.Area, block int, pages *precopy.Mask) error {
	c.marks.Clear(a, block, pages)
	return nil
}

// settle encodes the frames that waited, and stores what the readers still hold.
func (c *capture) settle() error {
	g := &errgroup.Group{}
	for _, r := range c.readers {
		g.Go(func() error {
			for {
				f, ok := c.late.next()
				if !ok {
					return r.encode(&r.frame, &r.raw)
				}
				if err := r.encode(&f.frame, &f.raw); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// finish stores what is left. Packs whose pages changed after they were sent are packed
// anew while the VM stands still.
func (c *capture) finish() error {
	if err := c.settle(); err != nil {
		return err
	}
	if c.push.o.Still {
		moved, err := c.compact()
		if err != nil {
			return err
		}
		if moved > 0 {
			if err := c.settle(); err != nil {
				return err
			}
		}
	}
	return c.packer.close()
}

// compact packs pages anew whose packs are mostly dead.
func (c *capture) compact() (uint64, error) {
	if c.drop(mostRead) == 0 {
		c.tallied = true // and nothing is stored any more
		return 0, nil
	}
	moved, err := c.pre.Pass(c.ctx, precopy.Scope{Last: true})
	return moved.Looked, err
}

func (c *capture) close() {
	for _, r := range c.readers {
		r.coder.Close()
	}
	c.pre.Close()
}

func (c *capture) note(step string, pages int) {
	c.push.o.Progress(Progress{Step: step, Done: c.done.Add(uint64(pages) * format.PageSize)})
}
