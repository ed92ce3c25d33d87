package snapshot

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/precopy"
)

// FillOptions of Fill. The zero value will do.
type FillOptions struct {
	Memory      int64 // of packs under way; default 256 MiB
	Concurrency int   // downloads at once; default 4
	Progress    func(Progress)
	// Table, if not nil, becomes the page table of the restored VM, for the next Push;
	// Repository is where the packs came from.
	Table      *os.File
	Repository string
}

// Fill writes the pages of address spaces, by name, into files that hold no data yet.
// Each pack is fetched once for all of them, whole or the parts in use, each frame verified
// before it is decoded; what is zero stays a hole. Bytes enter the files by pwrite only: a
// store through a mapping lets a reader see half a page. After an error the files hold
// a part of the pages and must not be used.
func (s *Snapshot) Fill(ctx context.Context, files map[string]*os.File, o FillOptions) error {
	if err := s.fill(ctx, files, o); err != nil {
		return fmt.Errorf("restore snapshot %s: %w", s.Digest, err)
	}
	return nil
}

// filler is one run of Fill.
type filler struct {
	*Snapshot
	files  []*os.File // by space; nil: not wanted
	table  *pagetable.Writer
	plan   *plan
	notify func(Progress)
	lazy   *lazy // of a VM that runs; nil: the files are written
	*buffers

	done  atomic.Uint64
	total uint64
}

func (s *Snapshot) fill(ctx context.Context, files map[string]*os.File, o FillOptions) error {
	f := &filler{Snapshot: s}
	if err := f.open(files); err != nil {
		return err
	}
	f.plan = newPlan(s.index, f.files, false)
	f.tells(o.Progress)
	return f.finish(ctx, o)
}

// tells says whom to tell how far it is.
func (f *filler) tells(notify func(Progress)) {
	if f.notify = notify; notify == nil {
		f.notify = func(Progress) {}
	}
	f.total = f.plan.pages * format.PageSize
}

// finish reads the packs of the plan, and makes the table.
func (f *filler) finish(ctx context.Context, o FillOptions) error {
	if o.Table != nil {
		var err error
		if f.table, err = pagetable.NewWriter(o.Table, o.Repository, f.indexBlob, f.keys); err != nil {
			if f.table, err = nil, f.tableError(err); err != nil {
				return err
			}
		}
	}
	if err := f.run(ctx, o); err != nil {
		return err
	}
	if f.table == nil || f.lazy != nil && f.lazy.untabled.Load() {
		return nil
	}
	return f.tableError(f.table.Close())
}

// tableError is none of a VM that runs: it needs its pages first, and its next push can do without.
func (f *filler) tableError(err error) error {
	if f.lazy == nil {
		return err
	}
	if err != nil {
		f.lazy.untabled.Store(true)
	}
	return nil
}

// open checks the files. A file that holds data already would keep it where the
// snapshot has zeros.
func (f *filler) open(files map[string]*os.File) error {
	f.files = make([]*os.File, len(f.index.Spaces))
	found := 0
	for i, sp := range f.index.Spaces {
		file := files[sp.Name]
		if file == nil {
			continue
		}
		found++
		size, err := fileSize(file)
		if err != nil {
			return fmt.Errorf("space %s: %w", sp.Name, err)
		}
		if size == 0 {
			err = file.Truncate(int64(sp.Size))
		} else if uint64(size) != sp.Size {
			return mismatch("size of the file for "+sp.Name, size, sp.Size)
		}
		if err != nil {
			return fmt.Errorf("space %s: %w", sp.Name, err)
		}
		if at, err := precopy.SeekData(file, 0); err != nil {
			return fmt.Errorf("space %s: %w", sp.Name, err)
		} else if at != precopy.NoData {
			return fmt.Errorf("space %s: its file holds data at %d: %w", sp.Name, at, errdefs.ErrFailedPrecondition)
		}
		f.files[i] = file
	}
	if found != len(files) {
		return invalid("spaces", "%d files, %d of them for spaces of the snapshot", len(files), found)
	}
	return nil
}

// run fetches packs and decodes what has arrived of them, on all cores. What is under way
// is bounded: a pack is asked for when there is room for it.
func (f *filler) run(ctx context.Context, o FillOptions) error {
	if o.Memory <= 0 {
		o.Memory = 256 << 20
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 4
	}
	f.buffers = newBuffers(o.Memory)
	g, ctx := errgroup.WithContext(ctx)
	packs := make(chan int)
	chunks := make(chan chunk, 2*runtime.GOMAXPROCS(0))
	g.Go(func() error {
		defer close(packs)
		for _, p := range f.plan.packs() {
			select {
			case packs <- p:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	var fetchers sync.WaitGroup
	for range o.Concurrency {
		fetchers.Add(1)
		g.Go(func() error {
			defer fetchers.Done()
			return f.fetch(ctx, packs, chunks)
		})
	}
	g.Go(func() error {
		fetchers.Wait()
		close(chunks)
		return nil
	})
	for range f.decoders() {
		g.Go(func() error { return f.decode(ctx, chunks) })
	}
	return g.Wait()
}

func (f *filler) decode(ctx context.Context, chunks <-chan chunk) error {
	d := decoder{filler: f, arena: make([]byte, chunkFrames*format.MaxFrame)}
	defer d.coder.Close()
	if f.table != nil {
		d.hash = pagetable.NewHasher(f.table.Key())
	}
	for {
		select {
		case c, ok := <-chunks:
			if !ok {
				return nil
			}
			err := d.chunk(ctx, c)
			for again := (retry{filler: f}); err != nil && again.after(ctx, err); {
				c.forget()
				if err = d.chunk(ctx, c); err == nil {
					again.over()
				}
			}
			c.done()
			if err != nil {
				return fmt.Errorf("pack %s: %w", f.parts.packs[c.number].Digest, err)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
