package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// The frames before one that was waited for come too. Of them only those in use that are missing are asked for, and
// none where the store knows no parts.
func TestFillWaitingBefore(t *testing.T) {
	for name, ranges := range map[string]bool{"parts": true, "no parts": false} {
		t.Run(name, func(t *testing.T) {
			patience := quick
			patience.Idle, patience.LongestIdle = time.Hour, time.Hour // the rest never comes
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
			if n := run.Frame - runs[0].Frame; n == 0 || n >= 16 { // what a first read brings
				t.Fatalf("%d frames before the wanted one", n)
			}
			ram := newLazyRAM(t)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- s.FillWaiting(ctx, "ram0", ram, FillOptions{patience: patience}, func(context.Context) error {
					return nil
				})
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
			for end := time.Now().Add(10 * time.Second); ranges && !before() &&
				time.Now().Before(end); time.Sleep(time.Millisecond) {
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
		_, err = io.CopyN(io.Discard, in, offset)
	}
	return in, err
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

// A page comes as soon as its frame is here, though those after it are not. If these never come, no page is said to
// wait for them.
func TestFillWaitingForTheFirstFrame(t *testing.T) {
	for name, fails := range map[string]error{"the rest comes": nil, "the rest fails": errors.New("reset")} {
		t.Run(name, func(t *testing.T) {
			patience := quick
			patience.Idle, patience.LongestIdle = time.Millisecond, time.Hour // the rest waits for what is under way
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
			err := s.FillWaiting(t.Context(), "ram0", ram, FillOptions{patience: patience, Progress: func(p Progress) {
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

// refusing is a store that refuses the login of so many calls.
type refusing struct {
	store.Store
	with error
	n    atomic.Int32
}

func (s *refusing) Get(ctx context.Context, o store.Object) (io.ReadCloser, error) {
	if s.n.Add(-1) >= 0 {
		return nil, s.with
	}
	return s.Store.Get(ctx, o)
}

// A login that a store refuses again and again ends a fill with that: the next one may have another login. Refused once
// it is tried again, as what has other reasons always is.
func TestFillWaitingWithARefusedLogin(t *testing.T) {
	for name, c := range map[string]struct {
		with  error
		calls int32
		wants bool // a page
		ends  bool
	}{
		"a page":     {errdefs.ErrUnauthenticated, 1 << 30, true, true},
		"the rest":   {errdefs.ErrPermissionDenied, 1 << 30, false, true},
		"once":       {errdefs.ErrUnauthenticated, 1, true, false},
		"other":      {errdefs.ErrUnavailable, 50, true, false},
		"other rest": {errdefs.ErrDataLoss, 50, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			patience := quick
			if patience.Idle = time.Millisecond; c.wants && c.ends {
				patience.LongestIdle = time.Hour // the rest never comes
			}
			w := newWorld(t, 66)
			_, s := w.stored(t)
			st := &refusing{Store: w.st, with: fmt.Errorf("pack: %w", c.with)}
			st.n.Store(c.calls)
			s.store = st
			ram := newLazyRAM(t)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if c.wants {
				run := s.index.Spaces[0].Runs[0]
				go ram.touch(ctx, int64(run.Page)*format.PageSize)
			}
			err := s.FillWaiting(ctx, "ram0", ram, FillOptions{patience: patience}, func(context.Context) error { return nil })
			if c.ends != errors.Is(err, c.with) || !c.ends && err != nil {
				t.Errorf("ends with %v", err)
			}
		})
	}
}
