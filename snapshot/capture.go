package snapshot

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
)

// capture looks at the pages of all spaces, in one pass, or in several while the VM runs
// (live.go):
//
//	extents -> blocks -> changed? -> zero test -> known? -> frames -> packs -> uploads
//
// Blocks are spread over the cores; everything from there to the frame happens in one
// goroutine per core, so that a page is touched while it is in the core's cache.
type capture struct {
	*push
	passes
	packer  *packer
	seen    *seen
	readers []*reader

	table   *nextTable // nil: none is made
	tallied bool       // what tally finds out stands

	room   atomic.Int64 // bytes of frames that may wait for the end of the last pass
	lateMu sync.Mutex
	late   []lateFrame
}

// lateFrame waits to be encoded behind the last pass.
type lateFrame struct {
	frame *frame
	raw   []byte
}

func newCapture(p *push, g *errgroup.Group, ctx context.Context) *capture {
	c := &capture{push: p, packer: newPacker(p, g, ctx), seen: newSeen(p.tables()), table: newNextTable(p.o.Next, p.tables())}
	c.passes = passes{
		ctx: ctx, live: p.o.Live, tracker: p.o.Tracker, budget: p.o.Budget, aim: p.o.Budget, most: mostPasses,
		behind: c.packer.drain, over: c.capturedNow, clones: true,
	}
	if p.o.Live != nil && !p.o.Still {
		c.live = trimming{p.o.Live, c}
	}
	c.cost = c.looking
	c.before = func(n int) {
		if n > 0 {
			c.drop(mostRead)
		}
	}
	for i, s := range p.src.Spaces {
		c.spaces = append(c.spaces, newArea(s, p.config.Spaces[i].Size))
	}
	c.inherit(p.o.Parent)
	c.inherit(p.again)
	c.finished.begin(c.seen.seed, c.spaces)
	c.sample = c.changedPages
	c.room.Store(p.o.Memory - int64(packBuffers(p.o.Memory))*format.PackSize)
	for range runtime.GOMAXPROCS(0) {
		r := &reader{capture: c, frame: new(frame), raw: make([]byte, 0, format.MaxFrame)}
		r.hash, r.coder.Key = c.seen.hashers(), p.key
		if c.table != nil {
			r.proof = newHasher(c.table.key)
		}
		c.readers = append(c.readers, r)
		c.lookers = append(c.lookers, r)
	}
	return c
}

// run returns when the last page has been read.
func (c *capture) run() error {
	if err := c.warm(); err != nil {
		return err
	}
	if c.o.Live != nil {
		err := c.passes.run()
		c.config.Resume = c.resume
		c.receipt.Passes, c.receipt.Untracked, c.receipt.Inside = c.made, c.untracked(), c.inside
		c.receipt.Disks = c.inPause()
		return err
	}
	if _, err := c.pass(pass{whole: true, last: true}); err != nil {
		return err
	}
	c.capturedNow()
	return nil
}

// settle encodes the frames that waited, and stores what the readers still hold.
func (c *capture) settle() error {
	g := &errgroup.Group{}
	for _, r := range c.readers {
		g.Go(func() error {
			for {
				c.lateMu.Lock()
				n := len(c.late)
				if n == 0 {
					c.lateMu.Unlock()
					return r.encode(&r.frame, &r.raw)
				}
				f := c.late[n-1]
				c.late = c.late[:n-1]
				c.lateMu.Unlock()
				if err := r.encode(&f.frame, &f.raw); err != nil {
					return err
				}
				c.room.Add(format.MaxFrame)
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
	if c.o.Still {
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
	moved, err := c.pass(pass{last: true})
	return moved.looked, err
}

func (c *capture) close() {
	for _, r := range c.readers {
		r.coder.Close()
	}
	for _, s := range c.spaces {
		s.close()
	}
}

func (c *capture) note(step string, pages int) {
	c.o.Progress(Progress{Step: step, Done: c.done.Add(uint64(pages) * format.PageSize)})
}

// capturedNow is when the last page has been read.
func (c *capture) capturedNow() {
	c.receipt.Captured = time.Now()
	c.o.Captured()
}
