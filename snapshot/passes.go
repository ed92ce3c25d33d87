package snapshot

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
)

// passes looks at the pages of all spaces, once, or again and again while a VM runs and a
// last time in its pause (live.go). Blocks are spread over the lookers, one for each core;
// what comes of a page is theirs.
type passes struct {
	ctx     context.Context
	spaces  []*area
	lookers []looker

	live    Live
	tracker Tracker
	budget  time.Duration
	aim     time.Duration                   // of a pause, the budget or less, that passes over what was written go on for
	most    int                             // passes before the pause
	cost    func(rest uint64) time.Duration // of so many pages in the pause
	before  func(n int)                     // the n-th pass while the VM runs, from 0 on; may be nil
	behind  func() error                    // each of those
	over    func()                          // the VM is not needed any more
	clones  bool                            // disks are set aside in the pause, where that can be
	// begin is called before each pass, whatever the VM does; it may be nil.
	begin func(pass) error
	// gone hears of pages that had data, and have none any more; nil: nobody wants to.
	gone func(s *area, number int, pages *mask) error

	// sample says how many pages may differ from what is known before the first pass; nil:
	// nothing is known.
	sample func() (rest uint64, known bool)

	surveyed bool // the pause has found out where RAM has data

	inside uint64 // bytes that were sent in the pause, for want of memory
	lost   error  // why the tracker is not asked any more
	made   []Pass
	resume json.RawMessage
	done   atomic.Uint64 // bytes of this pass
}

// looker looks at blocks in one goroutine.
type looker interface {
	begin(last bool)
	block(it item) error
	end() (passed, error)
}

// pass says which pages are looked at. Those of which nothing is known always are.
type pass struct {
	whole  bool // all, not only those that are due
	last   bool // the VM stands still
	behind bool // it did, and may go on: what is looked at has been set aside
	// only are the spaces that are looked at; nil: all but those that will be set aside.
	only func(*area) bool
}

// on reports whether a pass looks at a space.
func (kind pass) on(s *area) bool {
	if kind.only != nil {
		return kind.only(s)
	}
	return !kind.last || !s.clones
}

// passed is what came of one.
type passed struct {
	looked, changed, left uint64 // pages
	inside                uint64 // bytes that were sent in the pause, for want of memory
}

func (p *passes) warm() error {
	for _, s := range p.spaces {
		if err := s.warm(); err != nil {
			return err
		}
	}
	return nil
}

// item is a block and the pages of it that are looked at.
type item struct {
	space  *area
	number int
	pages  mask
}

func (p *passes) pass(kind pass) (passed, error) {
	if p.begin != nil {
		if err := p.begin(kind); err != nil {
			return passed{}, err
		}
	}
	g, ctx := errgroup.WithContext(p.ctx)
	items := make(chan item, 4*len(p.lookers))
	p.done.Store(0)
	g.Go(func() error {
		defer close(items)
		return p.scan(ctx, kind, items)
	})
	var mu sync.Mutex
	var sum passed
	for _, l := range p.lookers {
		g.Go(func() error {
			l.begin(kind.last)
			if err := each(ctx, items, l.block); err != nil {
				return err
			}
			one, err := l.end()
			mu.Lock()
			defer mu.Unlock()
			sum.looked, sum.changed, sum.left, sum.inside = sum.looked+one.looked, sum.changed+one.changed, sum.left+one.left, sum.inside+one.inside
			return err
		})
	}
	err := g.Wait()
	return sum, err
}

func each(ctx context.Context, items <-chan item, do func(item) error) error {
	for {
		select {
		case it, ok := <-items:
			if !ok {
				return nil
			}
			if err := do(it); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// scan sends what is to be looked at.
func (p *passes) scan(ctx context.Context, kind pass, items chan<- item) error {
	quiet := make([]bool, len(p.spaces))
	for i, s := range p.spaces {
		if !kind.on(s) {
			continue
		}
		var err error
		if quiet[i], err = s.quiet(); err != nil {
			return err
		}
		if err := p.look(s, kind); err != nil {
			return err
		}
	}
	for n, s := range p.spaces {
		s.asked = 0
		if !kind.on(s) {
			continue
		}
		// A disk cannot be tracked: all of it is looked at unless nobody has written to it.
		whole := !quiet[n] && (kind.whole || s.Disk != "")
		for i := range s.data {
			if err := s.send(ctx, i, whole, kind, items); err != nil {
				return err
			}
		}
	}
	return nil
}

// look finds out where an area has data. That is as long as what was written where the tracker
// knows, or where it has just been found out (stand).
func (p *passes) look(s *area, kind pass) error {
	tracked := !kind.whole && p.tracker != nil && p.lost == nil
	if kind.last && p.surveyed && s.Disk == "" {
		now, err := stampOf(s.File)
		if err != nil {
			return fmt.Errorf("scan %s: %w", s.Name, err)
		}
		tracked = tracked || s.stamp.stands(now)
	}
	if tracked {
		if known, err := s.glance(!kind.last, p.gone); known || err != nil {
			return err
		}
	}
	return s.look(p.gone)
}

func (s *area) send(ctx context.Context, i int, whole bool, kind pass, items chan<- item) error {
	data := &s.data[i]
	if data.empty() {
		return nil
	}
	if s.blocks[i] == nil {
		s.blocks[i] = new(block)
	}
	b := s.blocks[i]
	look := *data
	if !whole {
		unknown := data.without(&b.known)
		due := b.due.or(&b.left)
		due = due.and(data)
		look = due.or(&unknown)
	}
	if !kind.last {
		look = look.without(&b.left)
	}
	if look.empty() {
		return nil
	}
	b.due = b.due.without(&look)
	s.asked += uint64(look.count())
	if kind.last && !kind.behind {
		s.read += uint64(look.count()) * format.PageSize
	}
	select {
	case items <- item{s, i, look}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
