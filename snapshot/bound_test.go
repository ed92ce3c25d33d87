package snapshot

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// held is a store that takes and gives a pack only when the test lets it.
type held struct {
	store.Store
	arrived chan struct{}
	pass    chan struct{}
}

func (h held) wait(ctx context.Context) {
	select {
	case h.arrived <- struct{}{}:
		<-h.pass
	case <-ctx.Done():
	}
}

func (h held) Put(ctx context.Context, o store.Object, c store.Content) error {
	if c.Size > 1<<20 {
		h.wait(ctx)
	}
	return h.Store.Put(ctx, o, c)
}

func (h held) Get(ctx context.Context, o store.Object) (io.ReadCloser, error) {
	body, err := h.Store.Get(ctx, o)
	if err != nil || o.Manifest {
		return body, err
	}
	h.wait(ctx)
	return body, nil
}

// peak runs do and answers the most memory in use meanwhile. The registry lets one request pass at a time. Before
// each it waits until all requests have come that can come without that answer.
func (h held) peak(do func() error) (most uint64, err error) {
	done := make(chan error, 1)
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	go func() { done <- do() }()
	for {
		select {
		case err := <-done:
			return most, err
		case <-h.arrived:
			for range 20 { // what can go on without the answer does
				runtime.Gosched()
			}
			runtime.GC()
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc-min(before.HeapAlloc, now.HeapAlloc))
			h.pass <- struct{}{}
		}
	}
}

// wide has RAM of so many MiB that does not compress.
func wide(t *testing.T, mib int) *world {
	t.Helper()
	w := newWorld(t, 95)
	w.src.Spaces[0].File, w.opts.Spec.Memory = noise(t, mib, 95), uint64(mib)<<20
	return w
}

// noise is a file of so many MiB.
func noise(t *testing.T, mib int, seed byte) *os.File {
	t.Helper()
	f := emptyFile(t, "noise")
	rng := rand.NewChaCha8([32]byte{seed})
	buf := make([]byte, 1<<20)
	for range mib {
		_, _ = rng.Read(buf)
		if _, err := f.Write(buf); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// A registry that is slow makes a push and a restore wait. They never take more memory than they may, whatever the
// RAM of the VM.
func TestMemoryIsBounded(t *testing.T) {
	const memory, beside = 64 << 20, 24 << 20 // tables, codecs, connections
	w := wide(t, 240)
	plain := w.st
	h := held{plain, make(chan struct{}), make(chan struct{})}
	w.st, w.opts.Memory = h, memory
	var receipt Receipt
	most, err := h.peak(func() (err error) {
		receipt, err = Push(t.Context(), w.st, w.src, w.opts)
		return err
	})
	if err != nil || most > memory+beside {
		t.Fatalf("a push took %d MiB of %d, %v", most>>20, memory>>20, err)
	}
	t.Logf("push: %d MiB of %d", most>>20, memory>>20)
	s, err := Open(t.Context(), plain, receipt.Digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.store = h
	out := emptyFile(t, "out")
	most, err = h.peak(func() error {
		return s.Fill(t.Context(), map[string]*os.File{"ram0": out}, FillOptions{Memory: memory, Concurrency: 8})
	})
	if err != nil || most > memory+beside {
		t.Fatalf("a restore took %d MiB of %d, %v", most>>20, memory>>20, err)
	}
	t.Logf("restore: %d MiB of %d", most>>20, memory>>20)
	if sumFile(t, out) != sumFile(t, w.src.Spaces[0].File) {
		t.Error("RAM differs")
	}
}

// Frames are made smaller where packs pile up, unless that is for want of cores, and stay raw
// where that gains nothing.
func TestCodecFollowsTheNetwork(t *testing.T) {
	for name, tt := range map[string]struct {
		waiting int32
		text    bool
		busy    bool
		want    format.Codec
	}{
		"fast": {0, true, false, format.MinLZ}, "slow": {mostWaiting + 1, true, false, format.Zstd},
		"fast, noise": {0, false, false, format.Raw}, "slow, noise": {mostWaiting + 1, false, false, format.Raw},
		"fast, no core idle": {0, true, true, format.MinLZ}, "slow, no core idle": {mostWaiting + 1, true, true, format.S2},
	} {
		k := &packer{push: &push{o: Options{Spare: func() bool { return !tt.busy }}}}
		k.waiting.Store(tt.waiting)
		raw := randomBytes(rand.New(rand.NewPCG(1, 1)), format.MaxFrame)
		if tt.text {
			clear(raw[:format.MaxFrame/2])
		}
		var c format.Coder
		_, f, err := c.Encode(k.codec(), raw)
		c.Close()
		if d := cmp.Diff(tt.want, f.Codec); err != nil || d != "" {
			t.Errorf("%s: %v, %s", name, err, d)
		}
	}
}

// A registry that takes one pack after the other makes frames smaller.
func TestSlowRegistryGetsLess(t *testing.T) {
	w := wide(t, 128)
	for at := int64(20 << 20); at < 128<<20; at += format.PageSize { // of most pages a half compresses
		if _, err := w.src.Spaces[0].File.WriteAt(make([]byte, format.PageSize/2), at); err != nil {
			t.Fatal(err)
		}
	}
	h := held{w.st, make(chan struct{}), make(chan struct{})}
	w.st, w.opts.Memory, w.opts.Concurrency = h, 64<<20, 1
	go func() { // it gives way when nothing else can go on
		<-h.arrived
		for stack := make([]byte, 1<<20); !bytes.Contains(stack[:runtime.Stack(stack, true)], []byte("(*packer).take")); {
			runtime.Gosched()
		}
		close(h.pass)
		for range h.arrived {
		}
	}()
	defer close(h.arrived)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), h.Store, receipt.Digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	codecs := map[format.Codec]int{}
	for _, f := range s.index.Frames {
		codecs[f.Codec]++
	}
	if codecs[format.Zstd] == 0 || codecs[format.MinLZ] == 0 || codecs[format.Raw] == 0 {
		t.Errorf("frames by codec: %v, want some of each", codecs)
	}
}
