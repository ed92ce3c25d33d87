package snapshot

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/restore"
	"godwit.dev/godwit/snapshot/store"
)

// lazyRAM is the RAM of a VM that wants pages in any order, and writes to some.
type lazyRAM struct {
	t     *testing.T
	mu    sync.Mutex
	data  []byte
	there map[int64]bool
	told  func(offset int64)
	ready chan struct{} // closed when told is there
	fails error         // of each Put
}

func newLazyRAM(t *testing.T) *lazyRAM {
	return &lazyRAM{t: t, data: make([]byte, ramSize), there: map[int64]bool{}, ready: make(chan struct{})}
}

func (r *lazyRAM) Serve(ctx context.Context, fault func(int64)) error {
	r.told = fault
	close(r.ready)
	<-ctx.Done()
	return context.Cause(ctx)
}

func (r *lazyRAM) Put(offset int64, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails != nil {
		return r.fails
	}
	for ; len(data) > 0; offset, data = offset+format.PageSize, data[format.PageSize:] {
		if !r.there[offset] {
			copy(r.data[offset:], data[:format.PageSize])
			r.there[offset] = true
		}
	}
	return nil
}

func (r *lazyRAM) Zero(offset int64) error { return r.Put(offset, make([]byte, format.PageSize)) }

// touch is a thread of the VM.
func (r *lazyRAM) touch(ctx context.Context, offset int64) {
	for <-r.ready; ctx.Err() == nil; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		there := r.there[offset]
		r.mu.Unlock()
		if there {
			return
		}
		r.told(offset)
	}
}

// quick waits for a VM, and between two tries, for no longer than a test has to.
var quick = restore.Patience{Pause: time.Millisecond, LongestPause: 5 * time.Millisecond, Idle: 8 * time.Millisecond,
	LongestIdle: 20 * time.Millisecond}

// lazily restores RAM so, with a VM that touches pages meanwhile, and wants it to be right.
func (w *world) lazily(t *testing.T, st store.Store, d digest.Digest, table *os.File, progress func(Progress)) error {
	t.Helper()
	s, err := OpenWith(t.Context(), st, d, &w.opts.Ref, &w.opts.Keys)
	if err != nil {
		t.Fatal(err)
	}
	ram, whole := newLazyRAM(t), false
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var vm sync.WaitGroup
	for i := range 4 {
		vm.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(i)))
			for range 30 {
				ram.touch(ctx, rnd.Int64N(ramSize/format.PageSize)*format.PageSize)
			}
		})
	}
	err = s.FillWaiting(ctx, "ram0", ram, FillOptions{patience: quick, Table: table, Progress: progress},
		func(ctx context.Context) error {
			whole = true
			vm.Wait() // it is answered on
			return ctx.Err()
		})
	cancel()
	vm.Wait()
	if want, e := os.ReadFile(w.src.Spaces[0].File.Name()); e != nil || err == nil && !bytes.Equal(ram.data, want) {
		t.Error("RAM differs", e)
	}
	if (err == nil) != whole {
		t.Errorf("whole %v, %v", whole, err)
	}
	return err
}

// A VM that runs gets what it asks for and all the rest, and the table of an eager restore. Whichever call fails,
// and how, is tried again.
func TestFillWaiting(t *testing.T) {
	w := newWorld(t, 61)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	table := emptyFile(t, "table")
	var last Progress
	var mu sync.Mutex
	note := func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		last = p
	}
	count := &faulty{Store: w.st}
	if err := w.lazily(t, count, receipt.Digest, table, note); err != nil {
		t.Fatal(err)
	}
	if last.Step != "lazy fill" || last.Done != last.Total || last.Total == 0 || last.Waiting != "" {
		t.Errorf("%+v", last)
	}
	lazy, err := OpenTable(table)
	if err != nil {
		t.Fatal(err)
	}
	eager, err := OpenTable(w.restore(t, receipt.Digest).table)
	if err != nil || len(eager.entries) != len(lazy.entries) {
		t.Errorf("%d entries, %d of an eager restore, %v", len(lazy.entries), len(eager.entries), err)
	}
	opens := 3 // manifest, config, index
	for n := opens + 1; n <= count.calls; n++ {
		for _, class := range []error{errdefs.ErrPermissionDenied, errdefs.ErrUnavailable, errdefs.ErrNotFound} {
			if err := w.lazily(t, &faulty{Store: w.st, fail: n, err: class}, receipt.Digest, nil, nil); err != nil {
				t.Errorf("call %d of %d fails with %v: %v", n, count.calls, class, err)
			}
		}
	}
	if err := w.lazily(t, store.Keeping(w.st, kept(t)), receipt.Digest, nil, nil); err != nil {
		t.Error(err)
	}
	closed := emptyFile(t, "closed")
	closed.Close()
	if err := w.lazily(t, w.st, receipt.Digest, closed, nil); err != nil {
		t.Errorf("without a table: %v", err)
	}
}

// A pack that is damaged holds the VM up, and says so, until it is mended; no byte of it comes.
func TestFillWaitingForADamagedPack(t *testing.T) {
	w := newWorld(t, 62)
	receipt, s := w.stored(t)
	path := w.blob(s.parts.packs[0].Digest)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(good)
	for i := range bad {
		bad[i] ^= 0x55
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	var mend sync.Once
	err = w.lazily(t, w.st, receipt.Digest, nil, func(p Progress) {
		if p.Waiting == "" {
			return
		}
		mend.Do(func() {
			if p.Done != 0 {
				t.Errorf("%d bytes of a damaged pack came", p.Done)
			}
			if err := os.WriteFile(path, good, 0o600); err != nil {
				t.Error(err)
			}
		})
	})
	if err != nil {
		t.Error(err)
	}
}

// A VM that is gone, and one whose fill is called off, end it at once.
func TestFillWaitingEnds(t *testing.T) {
	w := newWorld(t, 63)
	_, s := w.stored(t)
	never := func(context.Context) error { t.Error("it is whole"); return nil }
	ram := newLazyRAM(t)
	ram.fails = errdefs.ErrNotFound
	if err := s.FillWaiting(t.Context(), "ram0", ram, FillOptions{patience: quick}, never); !errors.Is(err,
		restore.ErrGone) {
		t.Errorf("a VM that is gone: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.store = &faulty{Store: layout(t, t.TempDir()+"/none")}
	ram = newLazyRAM(t)
	go ram.touch(ctx, 0)
	err := s.FillWaiting(ctx, "ram0", ram, FillOptions{patience: quick, Progress: func(p Progress) {
		if p.Waiting != "" {
			cancel()
		}
	}}, never)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("called off: %v", err)
	}
	if err := s.FillWaiting(t.Context(), "ram9", ram, FillOptions{patience: quick}, never); !errdefs.IsInvalidArgument(
		err) {
		t.Errorf("no such space: %v", err)
	}
	if err := s.Check(t.Context()); err == nil {
		t.Error("packs that are not there were found")
	}
	s.store = w.st
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// stalled is a store whose first read of a part lasts, and which counts the packs that are asked for meanwhile.
type stalled struct {
	store.Store
	once  sync.Once
	asked chan struct{} // closed when that read has begun
	goOn  chan struct{}
	packs atomic.Int32
}

func (s *stalled) Get(ctx context.Context, o store.Object) (io.ReadCloser, error) {
	s.packs.Add(1)
	return s.Store.Get(ctx, o)
}

func (s *stalled) GetRange(ctx context.Context, d digest.Digest, offset, n int64) (io.ReadCloser, error) {
	s.once.Do(func() {
		close(s.asked)
		<-s.goOn
	})
	in, err := s.Store.Get(ctx, store.Blob(d))
	if err == nil {
		_, err = io.CopyN(io.Discard, in, offset)
	}
	return struct { // that does not seek
		io.Reader
		io.Closer
	}{in, in}, err
}

// The rest comes after what the VM waits for. It comes also where that does not come, or where the VM waits for
// nothing. A caller that calls it off does not wait for any of it.
func TestFillWaitsForAnIdleVM(t *testing.T) {
	w := newWorld(t, 64)
	_, s := w.stored(t)
	synctest.Test(t, func(t *testing.T) {
		o := FillOptions{patience: quick}
		o.patience.Idle, o.patience.LongestIdle = time.Millisecond, time.Hour
		st := &stalled{Store: w.st, asked: make(chan struct{}), goOn: make(chan struct{})}
		s.store = st
		ram, whole := newLazyRAM(t), false
		go func() {
			ram.touch(t.Context(), int64(s.index.Spaces[0].Runs[0].Page)*format.PageSize)
		}()
		go func() {
			<-st.asked
			time.Sleep(time.Second)
			if n := st.packs.Load(); n > 0 {
				t.Errorf("%d packs are read during the wait for a page that the VM waits for", n)
			}
			close(st.goOn)
		}()
		end := func(context.Context) error { whole = true; return nil }
		if err := s.FillWaiting(t.Context(), "ram0", ram, o, end); err != nil || !whole || st.packs.Load() == 0 {
			t.Errorf("whole %v by %d packs, %v", whole, st.packs.Load(), err)
		}
		never := func(context.Context) error { t.Error("it is whole"); return nil }
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.FillWaiting(ctx, "ram0", newLazyRAM(t), FillOptions{patience: quick}, never); !errors.Is(err,
			context.Canceled) {
			t.Errorf("called off: %v", err)
		}
		whole, o.patience.Idle, o.patience.LongestIdle = false, time.Hour, time.Millisecond
		if err := s.FillWaiting(t.Context(), "ram0", newLazyRAM(t), o, end); err != nil || !whole {
			t.Errorf("whole %v, %v", whole, err)
		}
	})
}
