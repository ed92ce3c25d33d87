// Package restore brings the pages of a stored snapshot: into files of a VM that does not run yet
// (Fill), or to a VM that runs and waits for them (Postcopy).
//
//	packs, or the parts of them that are in use -> chunks of frames -> verified, decoded -> pages
//
// Each frame is verified against the index before it is decoded. What the node keeps of packs is not
// fetched. Package snapshot opens and checks the snapshot before.
package restore

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/store"
)

// Source is a snapshot whose index has been verified.
type Source struct {
	Store   store.Store
	Index   *format.Index
	Encoded []byte          // the index, in the clear
	Packs   []v1.Descriptor // by pack of the index
	Keys    []*seal.Key     // by pack; nil: it is not sealed
}

// Options of Fill and Postcopy. The zero value will do.
type Options struct {
	Memory      int64 // of packs under way; default 256 MiB
	Concurrency int   // downloads at once; default 4
	Progress    func(Progress)
	// Table, if not nil, becomes the page table of the restored VM, for the next push;
	// Repository is where the packs came from.
	Table      *os.File
	Repository string
	// Patience of Postcopy.
	Patience Patience
}

// Patience is how long a VM that wakes has to want nothing before the rest of its RAM comes.
// LongestIdle bounds how long that rest waits: it takes cores and network from what the VM waits
// for. Pause and LongestPause are the bounds between two tries at what could not be read.
type Patience struct {
	Idle, LongestIdle   time.Duration
	Pause, LongestPause time.Duration
}

// The patience of nodes.
const (
	idleTime        = 200 * time.Millisecond
	longestIdleWait = time.Second
	pause           = 200 * time.Millisecond
	longestPause    = 5 * time.Second
)

func (p *Patience) defaults() {
	for of, preset := range map[*time.Duration]time.Duration{&p.Idle: idleTime, &p.LongestIdle: longestIdleWait,
		&p.Pause: pause, &p.LongestPause: longestPause} {
		if *of <= 0 {
			*of = preset
		}
	}
}

// Progress of a fill.
type Progress struct {
	Step        string // "fill" or "lazy fill"
	Done, Total uint64 // bytes

	// Waiting is why a VM that runs while it is filled has to wait; empty: it need not.
	Waiting string
	// Settled: such a VM has wanted no page for a moment. It is told again and again while that is so,
	// in the first seconds.
	Settled bool
}

// Fill writes the pages of address spaces, by name, into files that hold no data yet.
// Each pack is fetched once for all of them, whole or the parts in use; what is zero stays a hole.
// Bytes enter the files by pwrite only: a store through a mapping lets a reader see half a page.
// After an error the files hold a part of the pages and must not be used.
func Fill(ctx context.Context, src Source, files map[string]*os.File, o Options) error {
	f := &filler{src: src}
	if err := f.open(files); err != nil {
		return err
	}
	f.plan = newPlan(src.Index, f.files, false)
	f.tells(o.Progress)
	return f.finish(ctx, o)
}

// Read reads all pages, for the table that becomes of them.
func Read(ctx context.Context, src Source, o Options) error {
	f := &filler{src: src, files: make([]*os.File, len(src.Index.Spaces))}
	f.plan = newPlan(src.Index, f.files, true)
	f.tells(o.Progress)
	return f.finish(ctx, o)
}

// filler is one run of Fill or Postcopy.
type filler struct {
	src     Source
	files   []*os.File // by space; nil: not wanted
	table   *pagetable.Writer
	plan    *plan
	notify  func(Progress)
	post    *postcopy // of a VM that runs; nil: the files are written
	buffers *buffers

	done  atomic.Uint64
	total uint64
}

// tells says whom to tell how far it is.
func (f *filler) tells(notify func(Progress)) {
	if f.notify = notify; notify == nil {
		f.notify = func(Progress) {}
	}
	f.total = f.plan.pages * format.PageSize
}

// finish reads the packs of the plan, and makes the table.
func (f *filler) finish(ctx context.Context, o Options) error {
	if o.Table != nil {
		var err error
		if f.table, err = pagetable.NewWriter(o.Table, o.Repository, f.src.Encoded, f.src.Keys); err != nil {
			if f.table, err = nil, f.tableError(err); err != nil {
				return err
			}
		}
	}
	if err := f.run(ctx, o); err != nil {
		return err
	}
	if f.table == nil || f.post != nil && f.post.untabled.Load() {
		return nil
	}
	return f.tableError(f.table.Close())
}

// tableError is none of a VM that runs: it needs its pages first, and its next push can do without.
func (f *filler) tableError(err error) error {
	if f.post == nil {
		return err
	}
	if err != nil {
		f.post.untabled.Store(true)
	}
	return nil
}

// open checks the files. A file that holds data already would keep it where the
// snapshot has zeros.
func (f *filler) open(files map[string]*os.File) error {
	f.files = make([]*os.File, len(f.src.Index.Spaces))
	found := 0
	for i, sp := range f.src.Index.Spaces {
		file := files[sp.Name]
		if file == nil {
			continue
		}
		found++
		st, err := file.Stat()
		if err != nil {
			return fmt.Errorf("space %s: %w", sp.Name, err)
		}
		if size := st.Size(); size == 0 {
			err = file.Truncate(int64(sp.Size))
		} else if uint64(size) != sp.Size {
			return fmt.Errorf("space %s: its file has %d bytes, the snapshot %d: %w", sp.Name, size, sp.Size,
				errdefs.ErrFailedPrecondition)
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
		return fmt.Errorf("spaces: %d files, %d of them for spaces of the snapshot: %w", len(files), found,
			errdefs.ErrInvalidArgument)
	}
	return nil
}

// run fetches packs and decodes what has arrived of them, on all cores. What is under way
// is bounded: a pack is asked for when there is room for it.
func (f *filler) run(ctx context.Context, o Options) error {
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
	d := decoder{f: f, arena: make([]byte, chunkFrames*format.MaxFrame)}
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
			for again := (attempts{f: f}); err != nil && again.after(ctx, err); {
				c.forget()
				if err = d.chunk(ctx, c); err == nil {
					again.over()
				}
			}
			c.done()
			if err != nil {
				return fmt.Errorf("pack %s: %w", f.src.Packs[c.number].Digest, err)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
