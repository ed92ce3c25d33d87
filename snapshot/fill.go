package snapshot

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// FillOptions of Fill. The zero value will do.
type FillOptions struct {
	Memory      int64 // of pack buffers; default 256 MiB
	Concurrency int   // downloads at once; default 4
	Progress    func(Progress)
	// Table, if not nil, becomes the page table of the restored VM, for the next Push;
	// Repository is where the packs came from.
	Table      *os.File
	Repository string
}

// Fill writes the pages of address spaces, by name, into files that hold no data yet.
// Each pack is fetched once for all of them, verified whole, each frame verified before
// it is decoded; what is zero stays a hole. Bytes enter the files by pwrite only: a
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
	table  *tableWriter
	plan   *plan
	notify func(Progress)

	done  atomic.Uint64
	total uint64
}

func (s *Snapshot) fill(ctx context.Context, files map[string]*os.File, o FillOptions) error {
	f := &filler{Snapshot: s, notify: o.Progress}
	if f.notify == nil {
		f.notify = func(Progress) {}
	}
	if err := f.open(files); err != nil {
		return err
	}
	f.plan = newPlan(s.index, f.files)
	f.total = f.plan.pages * format.PageSize
	if o.Table != nil {
		var err error
		if f.table, err = newTableWriter(o.Table, o.Repository, s.indexBlob); err != nil {
			return err
		}
	}
	if err := f.run(ctx, o); err != nil {
		return err
	}
	if f.table != nil {
		return f.table.close()
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
		if at, _, err := nextData(file, 0); err != nil {
			return fmt.Errorf("space %s: %w", sp.Name, err)
		} else if at >= 0 {
			return fmt.Errorf("space %s: its file holds data at %d: %w", sp.Name, at, errdefs.ErrFailedPrecondition)
		}
		f.files[i] = file
	}
	if found != len(files) {
		return invalid("spaces", "%d files, %d of them for spaces of the snapshot", len(files), found)
	}
	return nil
}

// run fetches packs and decodes them. Whole packs are in memory, so that their digest
// is known before a byte of them is used; their number is bounded.
func (f *filler) run(ctx context.Context, o FillOptions) error {
	if o.Memory <= 0 {
		o.Memory = 256 << 20
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 4
	}
	o.Concurrency = max(1, min(o.Concurrency, int(o.Memory/format.MaxPack)))
	g, ctx := errgroup.WithContext(ctx)
	packs := make(chan int)
	bodies := make(chan fetched)
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
			return f.fetch(ctx, packs, bodies)
		})
	}
	g.Go(func() error {
		fetchers.Wait()
		close(bodies)
		return nil
	})
	for range runtime.GOMAXPROCS(0) {
		g.Go(func() error { return f.decode(ctx, bodies) })
	}
	return g.Wait()
}

type fetched struct {
	pack int
	data []byte
}

func (f *filler) fetch(ctx context.Context, packs <-chan int, bodies chan<- fetched) error {
	for p := range packs {
		d := f.parts.packs[p]
		data, err := readPack(ctx, f.store, d.Digest, d.Size)
		if err != nil {
			return lost("pack", d, err)
		}
		select {
		case bodies <- fetched{p, data}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (f *filler) decode(ctx context.Context, bodies <-chan fetched) error {
	d := decoder{filler: f}
	defer d.coder.Close()
	if f.table != nil {
		d.hash = newHasher(f.table.header.Key)
	}
	for {
		select {
		case b, ok := <-bodies:
			if !ok {
				return nil
			}
			if err := d.pack(b); err != nil {
				return fmt.Errorf("pack %s: %w", f.parts.packs[b.pack].Digest, err)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// decoder is what one core does.
type decoder struct {
	*filler
	coder   format.Coder
	hash    hasher
	entries []byte
}

func (d *decoder) pack(b fetched) error {
	d.entries = d.entries[:0]
	first, last := d.plan.frames(b.pack)
	for i := first; i < last; i++ {
		uses := d.plan.uses(i)
		if len(uses) == 0 {
			continue
		}
		fr := &d.index.Frames[i]
		raw, err := d.coder.Decode(fr, b.data[fr.Offset:fr.Offset+fr.Stored])
		if err != nil {
			return err
		}
		for _, u := range uses {
			if err := d.write(u, raw); err != nil {
				return err
			}
		}
		if d.table != nil {
			d.remember(uint32(i), uses, raw)
		}
	}
	d.notify(Progress{Step: "fill", Done: d.done.Load(), Total: d.total})
	if d.table == nil {
		return nil
	}
	return d.table.append(d.entries, len(d.entries)/entrySize)
}

func (d *decoder) write(u use, raw []byte) error {
	sp := &d.index.Spaces[u.space]
	r := sp.Runs[u.run]
	data := raw[int(r.Slot)*format.PageSize : int(r.Slot+r.Count)*format.PageSize]
	offset := r.Page * format.PageSize
	data = data[:min(uint64(len(data)), sp.Size-offset)]
	if _, err := d.files[u.space].WriteAt(data, int64(offset)); err != nil {
		return fileFull(sp.Name, err)
	}
	d.done.Add(uint64(r.Count) * format.PageSize)
	return nil
}

// remember adds each page in use once, however often it is used.
func (d *decoder) remember(frame uint32, uses []use, raw []byte) {
	var live [format.FramePages]bool
	for _, u := range uses {
		r := d.index.Spaces[u.space].Runs[u.run]
		for slot := r.Slot; slot < r.Slot+r.Count; slot++ {
			live[slot] = true
		}
	}
	for slot, ok := range live {
		if ok {
			page := raw[slot*format.PageSize : (slot+1)*format.PageSize]
			d.entries = d.table.entry(d.entries, d.hash, page, frame, slot)
		}
	}
}

// readPack fetches a pack again if its connection broke or its bytes are not the pack's:
// a cache on the way may be wrong once.
func readPack(ctx context.Context, st store.Store, d digest.Digest, size int64) ([]byte, error) {
	for try := 1; ; try++ {
		data, err := store.ReadBlob(ctx, st, d, size)
		if err == nil || try == 3 || ctx.Err() != nil || !errdefs.IsUnavailable(err) && !errdefs.IsDataLoss(err) {
			return data, err
		}
	}
}
