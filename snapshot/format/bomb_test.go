package format

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/minio/minlz"
)

// A frame of any codec is DataLoss in three cases. It holds a byte more than its pages, or a
// frame more than the format allows, or 32 MiB of zeros in a few bytes. Its decoder takes no
// more memory for it than for a good one.
func TestBombs(t *testing.T) {
	const bomb = 32 << 20
	pack := map[Codec]func(n int) []byte{
		S2: func(n int) []byte { return s2.EncodeBest(nil, make([]byte, n)) },
		MinLZ: func(n int) []byte { // of one repeat, which says nothing of its length beyond 16 MiB
			if n > minlz.MaxBlockSize {
				return append(binary.AppendUvarint([]byte{0}, uint64(n)), 0, 0, 0xfc, 0xff, 0xff, 0xff)
			}
			stored, err := minlz.Encode(nil, make([]byte, n), minlz.LevelSmallest)
			if err != nil {
				t.Fatal(err)
			}
			return stored
		},
		Zstd: func(n int) []byte { // as a stream, which says nothing of its length
			var b bytes.Buffer
			enc, err := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(MaxFrame))
			if err != nil {
				t.Fatal(err)
			}
			for ; n > 0; n -= 1 << 20 {
				if _, err := enc.Write(make([]byte, min(n, 1<<20))); err != nil {
					t.Fatal(err)
				}
			}
			if err := enc.Close(); err != nil {
				t.Fatal(err)
			}
			return b.Bytes()
		},
	}
	for codec, of := range pack {
		c := new(Coder)
		defer c.Close()
		decode := func(pages uint8, stored []byte) error {
			raw, err := c.Decode(&Frame{Pages: pages, Codec: codec, Stored: uint32(len(stored)), BLAKE3: hash(stored)}, stored)
			if err == nil && len(raw) != int(pages)*PageSize {
				t.Errorf("%v: %d bytes for %d pages", codec, len(raw), pages)
			}
			return err
		}
		for _, pages := range []uint8{1, 2, FramePages} {
			if err := decode(pages, of(int(pages)*PageSize)); err != nil {
				t.Errorf("%v: %d good pages: %v", codec, pages, err)
			}
			for _, n := range []int{int(pages)*PageSize + 1, int(pages)*PageSize - 1, MaxFrame + 1, bomb} {
				stored := of(n)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				err := decode(pages, stored)
				runtime.ReadMemStats(&after)
				if !errdefs.IsDataLoss(err) {
					t.Errorf("%v: %d bytes as %d pages: %v", codec, n, pages, err)
				}
				if took := after.TotalAlloc - before.TotalAlloc; took > 8<<20 {
					t.Errorf("%v: %d bytes as %d pages took %d bytes of memory", codec, n, pages, took)
				}
			}
		}
	}
}
