package snapshot

import (
	"context"
	"errors"
	"io"
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
		{46, 46 - 2*firstWindow, 46 + 2*firstWindow},
		{13, 0, 13 + 4*firstWindow}, // the begin of the pack
		{80, 0, 90},                 // that one is here
		{91, 91, 100},               // the end of the pack
		{20, 0, 90},                 // not on its way any more
		{101, 100, 103},             // of another pack
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
