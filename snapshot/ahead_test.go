package snapshot

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// What is read for those who wait grows with each time that a pack is wanted, up to its end or what is
// here; what is on its way already is read alone.
func TestAhead(t *testing.T) {
	frames := make([]format.Frame, 103)
	for i := range frames {
		if i >= 100 {
			frames[i].Pack = 1
		}
	}
	index := &format.Index{Frames: frames}
	l := &lazy{filler: &filler{Snapshot: &Snapshot{index: index}, plan: &plan{index: index}}, here: make([]atomic.Bool, len(frames)), windows: map[int]*window{}}
	l.here[90].Store(true)
	for _, c := range []struct{ frame, first, end int }{
		{30, 30 - firstWindow, 30 + firstWindow},
		{20, 20, 21}, // on its way
		{45, 45, 46},
		{46, 46, 46 + 2*firstWindow}, // those before are on their way
		{13, 0, 46},                  // those from 46 on are; the begin of the pack
		{80, 46, 90},                 // that one is here
		{91, 91, 100},                // the end of the pack
		{20, 0, 90},                  // not on its way any more
		{101, 100, 103},              // of another pack
	} {
		if first, end := l.ahead(c.frame); first != c.first || end != c.end {
			t.Errorf("frame %d is read with those from %d up to %d, want %d, %d", c.frame, first, end, c.first, c.end)
		}
	}
	for range 100 { // nothing grows for ever
		l.ahead(75)
		l.ahead(91)
	}
	if first, end := l.ahead(60); first != 0 || end != 90 {
		t.Errorf("at last frame 60 is read with those from %d up to %d, want 0, 90", first, end)
	}
}

// The frames before one that was waited for come too; of them only those in use that are missing are
// asked for, and none where the store knows no parts.
func TestFillWaitingBefore(t *testing.T) {
	for name, ranges := range map[string]bool{"parts": true, "no parts": false} {
		t.Run(name, func(t *testing.T) {
			quickLazy(t)
			lazyLull, longestLull = time.Hour, time.Hour // the rest never comes
			w := newWorld(t, 67)
			_, s := w.stored(t)
			asked := &askedFor{Store: w.st}
			if s.store = asked; ranges {
				s.store = struct{ *askedRanges }{&askedRanges{asked}}
			}
			runs := slices.Clone(s.index.Spaces[0].Runs) // of the first pack
			runs = slices.DeleteFunc(runs, func(r format.Run) bool { return s.index.Frames[r.Frame].Pack > 0 })
			slices.SortFunc(runs, func(a, b format.Run) int { return int(a.Frame) - int(b.Frame) })
			run := runs[len(runs)-1]
			if n := run.Frame - runs[0].Frame; n == 0 || n >= firstWindow {
				t.Fatalf("%d frames before the wanted one", n)
			}
			ram := newLazyRAM(t)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- s.FillWaiting(ctx, "ram0", ram, FillOptions{}, func(context.Context) error { return nil })
			}()
			ram.touch(ctx, int64(run.Page)*format.PageSize)
			before := func() bool {
				ram.mu.Lock()
				defer ram.mu.Unlock()
				for _, r := range runs {
					if r.Frame < run.Frame && !ram.there[int64(r.Page)*format.PageSize] {
						return false
					}
				}
				return true
			}
			for end := time.Now().Add(10 * time.Second); ranges && !before() && time.Now().Before(end); time.Sleep(time.Millisecond) {
			}
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if before() != ranges {
				t.Errorf("those before are here: %v", !ranges)
			}
			if n := asked.n.Load(); !ranges && n != 1 || ranges && n != 2 {
				t.Errorf("the store was asked %d times", n)
			}
		})
	}
}

// askedFor counts what is read of a store that knows no parts.
type askedFor struct {
	store.Store
	n atomic.Int32
}

func (s *askedFor) Get(ctx context.Context, o store.Object) (io.ReadCloser, error) {
	s.n.Add(1)
	in, err := s.Store.Get(ctx, o)
	return struct { // that does not seek
		io.Reader
		io.Closer
	}{in, in}, err
}

// askedRanges is one that does.
type askedRanges struct{ *askedFor }

func (s *askedRanges) GetRange(ctx context.Context, d digest.Digest, offset, _ int64) (io.ReadCloser, error) {
	in, err := s.Get(ctx, store.Blob(d))
	if err == nil {
		err = skip(in, offset)
	}
	return in, err
}

// What is asked for before a frame begins with one that is in use and ends with what is here.
func TestLacking(t *testing.T) {
	index := &format.Index{Frames: make([]format.Frame, 10), Spaces: []format.Space{{}}}
	for _, frame := range []uint32{0, 1, 2, 5, 6, 9} {
		index.Spaces[0].Runs = append(index.Spaces[0].Runs, format.Run{Page: uint64(frame), Frame: frame, Count: 1})
	}
	l := &lazy{filler: &filler{plan: newPlan(index, make([]*os.File, 1), true)}, here: make([]atomic.Bool, 10)}
	l.here[1].Store(true)
	for _, c := range []struct{ first, frame, want int }{{0, 9, 2}, {4, 9, 5}, {7, 9, 9}, {0, 2, 2}, {0, 1, 0}} {
		if got := l.lacking(c.first, c.frame); got != c.want {
			t.Errorf("before %d, from %d on: %d, want %d", c.frame, c.first, got, c.want)
		}
	}
}

// dripping is a store whose parts stop after the first bytes.
type dripping struct {
	store.Store
	first atomic.Int64  // bytes of a part that come at once; 0: all
	goOn  chan struct{} // then the others come, or an error
	fails error
}

func (s *dripping) GetRange(ctx context.Context, d digest.Digest, offset, n int64) (io.ReadCloser, error) {
	in, err := s.Store.Get(ctx, store.Blob(d))
	if err == nil {
		_, err = io.CopyN(io.Discard, in, offset)
	}
	first := s.first.Swap(0)
	if err != nil || first == 0 {
		return in, err
	}
	rest := readerFunc(func(p []byte) (int, error) {
		<-s.goOn
		if s.fails != nil {
			return 0, s.fails
		}
		return in.Read(p)
	})
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(in, first), rest), in}, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// A page comes as soon as its frame is here, though those behind it are not, and if these never
// come nobody is said to wait for them.
func TestFillWaitingForTheFirstFrame(t *testing.T) {
	for name, fails := range map[string]error{"the rest comes": nil, "the rest fails": errors.New("reset")} {
		t.Run(name, func(t *testing.T) {
			quickLazy(t)
			lazyLull, longestLull = time.Millisecond, time.Hour // the rest waits for what is under way
			w := newWorld(t, 65)
			_, s := w.stored(t)
			st := &dripping{Store: w.st, goOn: make(chan struct{}), fails: fails}
			s.store = st
			run := s.index.Spaces[0].Runs[0]
			if last := slices.IndexFunc(s.index.Frames, func(f format.Frame) bool { return f.Pack != 0 }); last == 1 {
				t.Fatal("the first pack has one frame")
			}
			st.first.Store(int64(s.index.Frames[run.Frame].Stored))
			ram, whole := newLazyRAM(t), false
			go func() {
				defer close(st.goOn)
				ram.touch(t.Context(), int64(run.Page)*format.PageSize) // hangs if all have to be here
			}()
			err := s.FillWaiting(t.Context(), "ram0", ram, FillOptions{Progress: func(p Progress) {
				if p.Waiting != "" {
					t.Errorf("somebody waits: %s", p.Waiting)
				}
			}}, func(context.Context) error { whole = true; return nil })
			if err != nil || !whole {
				t.Errorf("whole %v, %v", whole, err)
			}
		})
	}
}
