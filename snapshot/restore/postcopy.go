package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// Waiting is the RAM of a VM that runs while its pages come: package track has it.
type Waiting interface {
	// Serve tells, until ctx ends, which pages somebody waits for. Fault must not wait.
	Serve(ctx context.Context, fault func(offset int64)) error
	// Put brings pages; those that are there stay as they are.
	Put(offset int64, data []byte) error
	// Zero brings a page without content.
	Zero(offset int64) error
}

// ErrGone says that the VM is not there any more: nothing is tried again.
var ErrGone = errors.New("the VM is gone")

// How many packs are asked for at once, and how long the store may take with those that the node keeps.
const (
	checksAtOnce = 8
	keptBound    = time.Second
)

// Check wants every pack that a restore reads to be in the store. What the node keeps may be gone, or damaged, by the
// time that a VM which runs needs it. It counts only where the store does not answer soon.
func Check(ctx context.Context, src Source) error {
	p := newPlan(src.Index, make([]*os.File, len(src.Index.Spaces)), true)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(checksAtOnce)
	soon, cancel := context.WithTimeout(ctx, keptBound)
	defer cancel()
	for _, i := range p.packs() {
		d := src.Packs[i]
		g.Go(func() error {
			asking, kept := ctx, src.keeps(i, p)
			if kept {
				asking = soon
			}
			if asking.Err() != nil && ctx.Err() == nil {
				return nil
			}
			_, err := src.Store.Stat(asking, store.Blob(d.Digest))
			switch {
			case err == nil:
				return nil
			case kept && errdefs.IsNotFound(err):
				return fmt.Errorf("%w. The node keeps a copy, which may go while the VM runs. To wake the VM by it, set "+
					"worker.restore or annotation godwit.dev/restore to eager", store.Lost("pack", d, err))
			case kept && ctx.Err() == nil:
				cancel() // nor is the next one asked for
				return nil
			}
			return store.Lost("pack", d, err)
		})
	}
	return g.Wait()
}

// Postcopy brings the pages of a space to a VM that runs: those that it waits for first, the
// others after them, as soon as it wants none for a while. What cannot be read, or is not what the
// index says, is tried again until ctx ends, and told as Progress: the VM waits, since nothing else
// may stand there. A store that goes on to refuse the login is an error: the next Postcopy may have another one. Once
// all is there Postcopy calls whole, while it answers on.
//
// A table is made of all spaces; that it cannot be written costs the next push time, no more.
func Postcopy(ctx context.Context, src Source, space string, ram Waiting, o Options,
	whole func(context.Context) error) error {
	f := &filler{src: src, files: make([]*os.File, len(src.Index.Spaces))}
	f.plan = newPlan(src.Index, f.files, true)
	f.tells(o.Progress)
	o.Patience.defaults()
	f.post = &postcopy{f: f, ram: ram, patience: o.Patience, here: make([]atomic.Bool, len(src.Index.Frames)),
		busy: map[int]bool{}, windows: map[int]*window{}}
	f.post.space = slices.IndexFunc(src.Index.Spaces, func(sp format.Space) bool { return sp.Name == space })
	if f.post.space < 0 {
		return fmt.Errorf("space %s: the snapshot has none: %w", space, errdefs.ErrInvalidArgument)
	}
	outer, refused := context.WithCancelCause(ctx)
	defer refused(nil)
	serve, stop := context.WithCancel(outer)
	defer stop()
	f.post.ctx, f.post.refused = serve, refused
	g, ctx := errgroup.WithContext(outer)
	g.Go(func() error {
		err := ram.Serve(serve, f.post.fault)
		if serve.Err() != nil {
			err = nil
		}
		return err
	})
	f.post.served.Go(func() { f.post.reportIdle(serve) })
	g.Go(func() error {
		defer stop()
		if err := f.post.awaitIdle(ctx); err != nil {
			return err
		}
		if err := f.finish(ctx, o); err != nil {
			return err
		}
		return whole(ctx)
	})
	err := g.Wait()
	f.post.served.Wait()
	if outer.Err() != nil {
		return context.Cause(outer)
	}
	return err
}

// postcopy is what a filler is in addition, for a VM that runs.
type postcopy struct {
	f        *filler
	ctx      context.Context // ends when no fault is served any more
	refused  context.CancelCauseFunc
	space    int
	ram      Waiting
	patience Patience
	here     []atomic.Bool // by frame: its pages were brought
	served   sync.WaitGroup

	mu      sync.Mutex
	busy    map[int]bool // frames that somebody waits for, being read
	windows map[int]*window
	wanted  time.Time // when a page was last wanted; zero: never yet
	waiting string    // for what the fill waits

	untabled atomic.Bool // the table could not be written
}

// fault has the page brought that somebody waits for.
func (l *postcopy) fault(offset int64) {
	page := uint64(offset) / format.PageSize
	runs := l.f.src.Index.Spaces[l.space].Runs
	i, found := slices.BinarySearchFunc(runs, page, func(r format.Run, p uint64) int { return cmp.Compare(r.Page, p) })
	if !found {
		i--
	}
	empty := i < 0 || page >= runs[i].Page+uint64(runs[i].Count)
	if empty {
		if err := l.ram.Zero(offset); err != nil {
			l.served.Go(func() { l.zero(offset, err) })
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wanted = time.Now(); empty {
		return
	}
	frame := int(runs[i].Frame)
	if l.busy[frame] {
		return
	}
	l.busy[frame] = true
	first, end := l.readAhead(frame)
	l.served.Go(func() {
		d := decoder{f: l.f, arena: make([]byte, format.MaxFrame)}
		defer d.coder.Close()
		d.coder.Key = l.f.src.Keys[l.f.src.Index.Frames[frame].Pack]
		whole := l.fetch(&d, frame, end)
		l.mu.Lock()
		delete(l.busy, frame)
		l.mu.Unlock()
		if whole {
			l.before(&d, first, frame)
		}
	})
}

// zero tries again what has failed: the kernel does not tell of that page a second time.
func (l *postcopy) zero(offset int64, err error) {
	for again := (attempts{f: l.f}); again.after(l.ctx, err); {
		if err = l.ram.Zero(offset); err == nil {
			again.over()
			return
		}
	}
}

// fetch reads a frame and those after it up to end, which will be wanted soon, until that
// succeeds. It answers whether all of them came at once.
func (l *postcopy) fetch(d *decoder, frame, end int) bool {
	whole := true
	for again := (attempts{f: l.f}); ; whole = false {
		err := l.frames(d, frame, end, l.kept, l.keptPart, l.part)
		if err == nil {
			again.over()
			return whole
		}
		if l.here[frame].Load() {
			again.over()
			return false // who waits for another one has asked for that
		}
		if end = frame + 1; !again.after(l.ctx, err) {
			return false
		}
	}
}

// deliver verifies a frame and brings its pages.
func (d *decoder) deliver(i int, stored []byte) error {
	fr := &d.f.src.Index.Frames[i]
	raw, err := d.coder.DecodeTo(d.arena, fr, stored)
	if err != nil {
		return fmt.Errorf("pack %s: %w", d.f.src.Packs[fr.Pack].Digest, err)
	}
	d.pieces = d.pieces[:0]
	for _, u := range d.f.plan.uses(i) {
		if int(u.space) == d.f.post.space {
			r := d.f.src.Index.Spaces[u.space].Runs[u.run]
			d.pieces = append(d.pieces,
				piece{u.space, r.Page, raw[int(r.Slot)*format.PageSize : int(r.Slot+r.Count)*format.PageSize]})
		}
	}
	if err := d.f.post.pieces(d.pieces); err != nil {
		return err
	}
	d.f.post.mark(i)
	return nil
}

// pieces brings them. Only a VM that is gone takes none.
func (l *postcopy) pieces(all []piece) error {
	for _, p := range all {
		if err := l.ram.Put(int64(p.page)*format.PageSize, p.data); err != nil {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
	}
	return nil
}

// put says that frames were brought.
func (l *postcopy) put(first, end int) {
	for i := first; i < end; i++ {
		l.mark(i)
	}
	l.mu.Lock()
	waiting := l.waiting
	l.mu.Unlock()
	l.tell(waiting)
}

// mark counts the pages of a frame once.
func (l *postcopy) mark(frame int) {
	if !l.here[frame].CompareAndSwap(false, true) {
		return
	}
	for _, u := range l.f.plan.uses(frame) {
		l.f.done.Add(uint64(l.f.src.Index.Spaces[u.space].Runs[u.run].Count) * format.PageSize)
	}
}

// attempts is what a filler does about an error. Those of a VM that does not run give up.
type attempts struct {
	f      *filler
	pause  retry.Backoff
	failed bool
}

// after reports whether to try again, once it has told why and waited.
func (r *attempts) after(ctx context.Context, err error) bool {
	if r.f.post == nil || ctx.Err() != nil || errors.Is(err, ErrGone) {
		return false
	}
	r.pause.Min, r.pause.Max = r.f.post.patience.Pause, r.f.post.patience.LongestPause
	r.failed = true
	// Not at once: the next one reads again what is there already.
	if (errdefs.IsUnauthorized(err) || errdefs.IsPermissionDenied(err)) && r.pause.Longest() {
		r.f.post.refused(err)
		return false
	}
	r.f.post.note(err.Error())
	r.pause.Wait(ctx)
	return ctx.Err() == nil
}

// over says that what was tried again has succeeded.
func (r *attempts) over() {
	if r.failed {
		r.f.post.note("")
	}
}

// note tells for what the fill waits; empty: for nothing any more.
func (l *postcopy) note(what string) {
	l.mu.Lock()
	same := l.waiting == what
	l.waiting = what
	l.mu.Unlock()
	if !same {
		l.tell(what)
	}
}

func (l *postcopy) tell(waiting string) {
	l.f.notify(Progress{Step: "lazy fill", Done: l.f.done.Load(), Total: l.f.total, Waiting: waiting})
}

// decoders of a filler: a VM that runs needs the other half of the cores.
func (f *filler) decoders() int {
	if f.post != nil {
		return max(1, runtime.GOMAXPROCS(0)/2)
	}
	return runtime.GOMAXPROCS(0)
}
