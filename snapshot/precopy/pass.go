package precopy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Scope says which pages a pass looks at. Pages of which nothing is known it always looks at.
type Scope struct {
	// Number of a pass that the VM runs through, from 0 on.
	Number int
	// Last is set where the VM stands still, or has stood still.
	Last bool
	// Rest is how many pages were left to look at, as far as it is known. Expected is how long the
	// pause would have taken for them.
	Rest     uint64
	Expected time.Duration

	whole bool // all pages, not only those that are due
	after bool // the pause may be over: what is looked at has been set aside
	// only are the areas that are looked at; nil: all but those that will be set aside.
	only func(*Area) bool
}

// has reports whether a pass looks at an area.
func (s Scope) has(a *Area) bool {
	if s.only != nil {
		return s.only(a)
	}
	return !s.Last || !a.clones
}

// Precopy reads the pages of one VM, once.
type Precopy struct {
	Areas []*Area
	o     Options
	work  []Worker

	passes    []Pass
	inside    uint64
	rest      uint64        // of the last estimate
	expected  time.Duration // of the last estimate
	surveyed  bool          // the pause has found out where RAM has data
	untracked error         // why the tracker is not asked any more
}

// New makes the one of a VM. The sizes of its spaces are in bytes.
func New(spaces []Space, sizes []int64, o Options) *Precopy {
	p := &Precopy{o: o}
	for i, s := range spaces {
		p.Areas = append(p.Areas, NewArea(s, i, sizes[i]))
	}
	return p
}

// Work adds a worker: one for each core is best.
func (p *Precopy) Work(w Worker) { p.work = append(p.work, w) }

// Open maps what is mapped. Close undoes it, also if Open failed.
func (p *Precopy) Open() error {
	for _, a := range p.Areas {
		if err := a.open(); err != nil {
			return err
		}
	}
	return nil
}

// Close gives back what the areas hold.
func (p *Precopy) Close() {
	for _, a := range p.Areas {
		a.close()
	}
}

// RAM is the area that is tracked.
func (p *Precopy) RAM() *Area {
	for _, a := range p.Areas {
		if a.Disk == "" {
			return a
		}
	}
	return &Area{}
}

// Pass looks at pages, once.
func (p *Precopy) Pass(ctx context.Context, scope Scope) (Count, error) {
	scope.Rest, scope.Expected = p.rest, p.expected
	if err := p.o.Copy.Begin(scope); err != nil {
		return Count{}, err
	}
	g, ctx := errgroup.WithContext(ctx)
	items := make(chan Item, 4*len(p.work))
	g.Go(func() error {
		defer close(items)
		return p.offer(ctx, scope, items)
	})
	var mu sync.Mutex
	var sum Count
	for _, w := range p.work {
		g.Go(func() error {
			w.Begin(scope.Last)
			if err := each(ctx, items, w.Block); err != nil {
				return err
			}
			one, err := w.End()
			mu.Lock()
			defer mu.Unlock()
			sum.add(one)
			return err
		})
	}
	err := g.Wait()
	return sum, err
}

func each(ctx context.Context, items <-chan Item, do func(Item) error) error {
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

// offer sends what is to be looked at.
func (p *Precopy) offer(ctx context.Context, scope Scope, items chan<- Item) error {
	unwritten := make([]bool, len(p.Areas))
	for i, a := range p.Areas {
		if !scope.has(a) {
			continue
		}
		var err error
		if unwritten[i], err = a.unwritten(); err != nil {
			return err
		}
		if err := p.find(a, scope); err != nil {
			return err
		}
	}
	for n, a := range p.Areas {
		a.asked = 0
		if !scope.has(a) {
			continue
		}
		whole := scope.whole
		if a.Disk != "" { // all of it is looked at, unless it is known what was written
			whole = !unwritten[n] && !a.noted
		}
		for i := range a.data {
			if err := a.offer(ctx, i, whole, scope, items); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *Area) offer(ctx context.Context, i int, whole bool, scope Scope, items chan<- Item) error {
	data := &a.data[i]
	if data.Empty() {
		return nil
	}
	b := a.Block(i)
	look := *data
	if !whole {
		unknown := data.without(&b.known)
		due := b.due.or(&b.left)
		due = due.and(data)
		look = due.or(&unknown)
	}
	if !scope.Last {
		look = look.without(&b.left)
	}
	if look.Empty() {
		return nil
	}
	b.due = b.due.without(&look)
	a.asked += uint64(look.Count())
	if scope.Last && !scope.after {
		a.read += uint64(look.Count()) * pageSize
	}
	select {
	case items <- Item{a, i, look}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errNotMapped is what Sample answers where RAM is not mapped.
var errNotMapped = errors.New("RAM is not mapped")

// Sample reads one block of RAM in so many, and calls do for each run of pages with data.
func (p *Precopy) Sample(every int, do func(block, from, to int) error) error {
	a := p.RAM()
	if a.mem == nil {
		return errNotMapped
	}
	if err := a.scan(p.o.Copy.Gone); err != nil {
		return err
	}
	for n := 0; n < len(a.blocks); n += every {
		err := a.data[n].Runs(func(from, to int) error {
			if int64(n)*blockSize+int64(to)*pageSize > a.Size {
				return nil
			}
			return do(n, from, to)
		})
		if err != nil {
			return fmt.Errorf("look at a part of RAM: %w", err)
		}
	}
	return nil
}
