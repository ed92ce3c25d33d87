package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/s2"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// memory is a store that costs nothing.
type memory struct {
	mu sync.Mutex
	m  map[string][]byte
}

func (s *memory) Stat(_ context.Context, o store.Object) (store.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.m[o.Name]
	if !ok {
		return store.Info{}, errdefs.ErrNotFound
	}
	return store.Info{Size: int64(len(data))}, nil
}

func (s *memory) Get(_ context.Context, o store.Object) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.m[o.Name]
	if !ok {
		return nil, errdefs.ErrNotFound
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (s *memory) Put(_ context.Context, o store.Object, c store.Content) error {
	body, err := c.Open()
	if err != nil {
		return err
	}
	data := make([]byte, c.Size)
	if _, err := io.ReadFull(body, data); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[o.Name], s.m[c.Digest.String()] = data, data
	return nil
}

func (s *memory) Delete(context.Context, string) error   { return nil }
func (s *memory) Tags(context.Context) ([]string, error) { return nil, nil }

func cpuSeconds() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// benchSize is the RAM, 256 MiB of which half is text-like, a quarter noise, a quarter zero.
const benchSize = 256 << 20

func benchFile(b *testing.B, name string) *os.File {
	b.Helper()
	f, err := os.CreateTemp("/dev/shm", name)
	if err != nil {
		b.Fatal(err)
	}
	os.Remove(f.Name())
	b.Cleanup(func() { f.Close() })
	return f
}

func benchWorld(b *testing.B) *world {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 1))
	ram := benchFile(b, "ram")
	page := make([]byte, format.PageSize)
	for off := int64(0); off < benchSize; off += format.PageSize {
		switch rng.IntN(4) {
		case 0:
			continue
		case 1:
			copy(page, randomBytes(rng, format.PageSize))
		default:
			for i := 0; i < len(page); i += 16 {
				copy(page[i:], []byte{byte(rng.Uint32()), byte(rng.Uint32()), 0, 0, 0x55, 0x7f, 0, 0, byte(i), 1, 0, 0, 0, 0, 0, 0})
			}
		}
		if _, err := ram.WriteAt(page, off); err != nil {
			b.Fatal(err)
		}
	}
	if err := ram.Truncate(benchSize); err != nil {
		b.Fatal(err)
	}
	w := &world{st: &memory{m: map[string][]byte{}}}
	w.opts = Options{Ref: testRef(), Spec: &spec.Spec{
		Version: 1, Namespace: "default", ID: "vm1", UID: "uid1", Memory: benchSize, VCPUs: 1,
	}}
	state := benchFile(b, "state")
	w.src = Source{Spaces: []Space{{Name: "ram0", File: ram}}, State: state}
	return w
}

// report gives gigabytes of resident pages per second of one core. In addition it gives the same for the codec
// alone in this process.
func report(b *testing.B, resident uint64, cpu float64) {
	b.ReportMetric(float64(resident)*float64(b.N)/cpu/1e9, "GB/core-s")
	raw := make([]byte, 0, format.MaxFrame)
	rng := rand.New(rand.NewPCG(2, 2))
	for len(raw) < format.MaxFrame {
		raw = append(raw, byte(rng.Uint32()), byte(rng.Uint32()), 0, 0, 0x55, 0x7f, 0, 0)
	}
	dst := make([]byte, s2.MaxEncodedLen(len(raw)))
	before := cpuSeconds()
	for range 2000 {
		s2.Encode(dst, raw)
	}
	b.ReportMetric(2000*format.MaxFrame/(cpuSeconds()-before)/1e9, "s2-GB/core-s")
}

func BenchmarkPush(b *testing.B) {
	w := benchWorld(b)
	runtime.GC()
	b.ResetTimer()
	before := cpuSeconds()
	var receipt Receipt
	for b.Loop() {
		var err error
		if receipt, err = Push(b.Context(), w.st, w.src, w.opts); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(receipt.Figures.Resident))
	report(b, receipt.Figures.Resident, cpuSeconds()-before)
}

func BenchmarkFill(b *testing.B)      { benchFill(b, false) }
func BenchmarkFillTable(b *testing.B) { benchFill(b, true) }

func benchFill(b *testing.B, table bool) {
	w := benchWorld(b)
	receipt, err := Push(b.Context(), w.st, w.src, w.opts)
	if err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	b.ResetTimer()
	before := cpuSeconds()
	for b.Loop() {
		s, err := Open(b.Context(), w.st, receipt.Digest, nil)
		if err != nil {
			b.Fatal(err)
		}
		f := benchFile(b, "out")
		var o FillOptions
		if table {
			o.Table = benchFile(b, "table")
		}
		if err := s.Fill(b.Context(), map[string]*os.File{"ram0": f}, o); err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
	b.SetBytes(int64(receipt.Figures.Resident))
	report(b, receipt.Figures.Resident, cpuSeconds()-before)
}

// still is a VM that has written one page in a hundred since it woke, and the tracker that knows.
type still struct{}

func (still) Prepare(context.Context) error                 { return nil }
func (still) Pause(context.Context) error                   { return nil }
func (still) Save(context.Context) (json.RawMessage, error) { return json.RawMessage("{}"), nil }
func (still) Between() bool                                 { return true }

func (still) Next(_ bool, written func(offset, end int64)) (bool, error) {
	for at := int64(0); at < benchSize; at += 100 * format.PageSize {
		written(at, at+format.PageSize)
	}
	return true, nil
}

// BenchmarkSecondPush compares every page, BenchmarkTrackedPush those that were written since the wake.
func BenchmarkSecondPush(b *testing.B)  { benchSecond(b, false) }
func BenchmarkTrackedPush(b *testing.B) { benchSecond(b, true) }

func benchSecond(b *testing.B, tracked bool) {
	w := benchWorld(b)
	receipt, err := Push(b.Context(), w.st, w.src, w.opts)
	if err != nil {
		b.Fatal(err)
	}
	s, err := Open(b.Context(), w.st, receipt.Digest, nil)
	if err != nil {
		b.Fatal(err)
	}
	if tracked {
		w.opts.Live, w.opts.Tracker = still{}, still{}
	}
	table := benchFile(b, "table")
	if err := s.Fill(b.Context(), map[string]*os.File{"ram0": benchFile(b, "out")},
		FillOptions{Table: table}); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	before := cpuSeconds()
	for b.Loop() {
		if w.opts.Parent, err = OpenTable(table); err != nil {
			b.Fatal(err)
		}
		if receipt, err = Push(b.Context(), w.st, w.src, w.opts); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(receipt.Figures.Resident))
	report(b, receipt.Figures.Resident, cpuSeconds()-before)
}

// wire is a store at the other end of a network of so many bytes a second.
type wire struct {
	*memory
	rate int64
	mu   sync.Mutex
}

func (w *wire) Put(ctx context.Context, o store.Object, c store.Content) error {
	w.mu.Lock()
	time.Sleep(time.Duration(float64(c.Size) / float64(w.rate) * float64(time.Second)))
	w.mu.Unlock()
	return w.memory.Put(ctx, o, c)
}

// BenchmarkCodecs is a push over networks of 0.5, 1, 5 and 10 Gbit/s, by codec: what is
// chosen by itself should be near the better one everywhere.
func BenchmarkCodecs(b *testing.B) {
	for _, mbit := range []int64{500, 1000, 5000, 10000} {
		for name, codec := range map[string]format.Codec{"auto": CodecAuto, "minlz": format.MinLZ, "s2": format.S2,
			"zstd": format.Zstd} {
			b.Run(fmt.Sprintf("%dMbit/%s", mbit, name), func(b *testing.B) {
				w := benchWorld(b)
				if file := os.Getenv("GODWIT_BENCH_RAM"); file != "" {
					f, err := os.Open(file)
					if err != nil {
						b.Fatal(err)
					}
					defer f.Close()
					w.src.Spaces[0].File, w.opts.Spec.Memory = f, 2<<30
				}
				w.opts.Codec = codec
				var receipt Receipt
				before := cpuSeconds()
				for b.Loop() {
					var err error
					w.st = &wire{memory: &memory{m: map[string][]byte{}}, rate: mbit * 1e6 / 8}
					if receipt, err = Push(b.Context(), w.st, w.src, w.opts); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric((cpuSeconds()-before)/float64(b.N), "core-s")
				b.ReportMetric(float64(receipt.Figures.Pushed)/(1<<20), "MiB")
			})
		}
	}
}
