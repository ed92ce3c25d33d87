package format

import (
	"bytes"
	"encoding/hex"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

var update = flag.Bool("update", false, "write golden files")

// sample is small and has every table filled.
func sample() *Index {
	x := &Index{
		Packs: []Pack{{SHA256: [32]byte{1}, Size: 200000}, {SHA256: [32]byte{2}, Size: 65536}},
		Frames: []Frame{
			{Pack: 0, Offset: 0, Stored: 1000, Pages: 16, Codec: S2, BLAKE3: [32]byte{3}},
			{Pack: 0, Offset: 1000, Stored: 500, Pages: 2, Codec: Zstd, BLAKE3: [32]byte{4}},
			{Pack: 1, Offset: 0, Stored: 4096, Pages: 1, Codec: Raw, BLAKE3: [32]byte{5}},
		},
		Spaces: []Space{
			{Name: "ram0", Size: 1 << 20, Runs: []Run{{0, 0, 0, 16}, {20, 1, 0, 2}, {255, 2, 0, 1}}},
			{Name: "disk0", Size: 5000, Runs: []Run{{1, 0, 3, 1}}},
		},
	}
	return x
}

// The bytes of version 1, once for all: this file never changes.
func TestGoldenIndex(t *testing.T) {
	blob, err := sample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := inflate(blob, MaxIndex)
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "index-v1.hex")
	if *update {
		if err := os.WriteFile(golden, []byte(hex.Dump(raw)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), hex.Dump(raw)); d != "" {
		t.Errorf("index differs from %s: %s", golden, d)
	}
	got, err := Decode(blob)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(sample(), got); d != "" {
		t.Error(d)
	}
}

func TestIndexRefuses(t *testing.T) {
	tests := map[string]func(*Index){
		"path as space":     func(x *Index) { x.Spaces[0].Name = "../ram0" },
		"space twice":       func(x *Index) { x.Spaces[1].Name = "ram0" },
		"empty space":       func(x *Index) { x.Spaces[0].Size = 0 },
		"huge space":        func(x *Index) { x.Spaces[0].Size = MaxSpace + 1 },
		"huge pack":         func(x *Index) { x.Packs[0].Size = MaxPack + 1 },
		"empty pack":        func(x *Index) { x.Packs[0].Size = 0 },
		"frame's pack":      func(x *Index) { x.Frames[2].Pack = 2 },
		"frame past pack":   func(x *Index) { x.Frames[2].Offset = 65536 - 4095 },
		"frames overlap":    func(x *Index) { x.Frames[1].Offset = 999 },
		"frames disordered": func(x *Index) { x.Frames[0].Pack = 1 },
		"no pages":          func(x *Index) { x.Frames[0].Pages = 0 },
		"many pages":        func(x *Index) { x.Frames[0].Pages = 17 },
		"nothing stored":    func(x *Index) { x.Frames[0].Stored = 0 },
		"stored grows":      func(x *Index) { x.Frames[1].Stored = 2*PageSize + 1 },
		"raw of other size": func(x *Index) { x.Frames[2].Stored = 4095 },
		"run's frame":       func(x *Index) { x.Spaces[0].Runs[0].Frame = 3 },
		"run past frame":    func(x *Index) { x.Spaces[0].Runs[1].Slot = 1 },
		"empty run":         func(x *Index) { x.Spaces[0].Runs[1].Count = 0 },
		"runs overlap":      func(x *Index) { x.Spaces[0].Runs[1].Page = 15 },
		"run past space":    func(x *Index) { x.Spaces[0].Runs[2].Page = 256 },
		"run wraps":         func(x *Index) { x.Spaces[0].Runs[2].Page = 1<<64 - 1 },
	}
	for name, change := range tests {
		x := sample()
		change(x)
		if err := x.Validate(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	x := sample()
	x.Frames[0].Codec = 4
	if err := x.Validate(); !errdefs.IsNotImplemented(err) {
		t.Errorf("unknown codec: %v", err)
	}
}

func pack(t *testing.T, raw []byte) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	return enc.EncodeAll(raw, nil)
}

func TestDecodeRefuses(t *testing.T) {
	blob, err := sample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := inflate(blob, MaxIndex)
	if err != nil {
		t.Fatal(err)
	}
	for n := range raw { // truncated anywhere
		if _, err := decodeRaw(raw[:n]); !errdefs.IsInvalidArgument(err) {
			t.Fatalf("%d of %d bytes: %v", n, len(raw), err)
		}
	}
	for n := range blob {
		if _, err := Decode(blob[:n]); !errdefs.IsInvalidArgument(err) {
			t.Fatalf("%d of %d stored bytes: %v", n, len(blob), err)
		}
	}
	at := func(i int, v byte) []byte {
		b := bytes.Clone(raw)
		b[i] = v
		return pack(t, b)
	}
	if _, err := Decode(at(8, 2)); !errdefs.IsNotImplemented(err) {
		t.Errorf("newer version: %v", err)
	}
	if _, err := Decode(at(10, 16)); !errdefs.IsNotImplemented(err) {
		t.Errorf("other pages: %v", err)
	}
	for _, i := range []int{0, 15, 19, 23, 27, 28, 47, 56} { // magic, counts, reserved, name, first run
		if _, err := Decode(at(i, 0xff)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("byte %d: %v", i, err)
		}
	}
	if _, err := inflate(bytes.Repeat(pack(t, make([]byte, 1<<20)), 5), 4<<20); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a bomb: %v", err)
	}
}

func TestCodecs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	noise := make([]byte, MaxFrame)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	text := bytes.Repeat([]byte("all work and no play "), MaxFrame/21+1)[:MaxFrame]
	for _, codec := range []Codec{Raw, Zstd, S2, MinLZ} {
		for _, pages := range []int{1, 7, 16} {
			for kind, src := range map[string][]byte{"noise": noise, "text": text} {
				var enc, dec Coder
				raw := src[:pages*PageSize]
				stored, f, err := enc.Encode(codec, raw)
				if err != nil {
					t.Fatal(err)
				}
				if want := map[bool]Codec{true: Raw, false: codec}[kind == "noise"]; f.Codec != want {
					t.Errorf("%s with codec %d: stored with %d, want %d", kind, codec, f.Codec, want)
				}
				stored = bytes.Clone(stored)
				got, err := dec.Decode(&f, stored)
				if err != nil || !bytes.Equal(got, raw) {
					t.Errorf("%s with codec %d, %d pages: %v", kind, codec, pages, err)
				}
				stored[len(stored)/2] ^= 1
				if _, err := dec.Decode(&f, stored); !errdefs.IsDataLoss(err) {
					t.Errorf("corrupt frame: %v", err)
				}
				enc.Close()
				dec.Close()
			}
		}
	}
}

// What decodes is valid, and says the same when it is encoded again.
func FuzzDecode(f *testing.F) {
	blob, err := sample().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(blob)
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := Decode(data)
		if err != nil {
			return
		}
		again, err := x.Encode()
		if err != nil {
			t.Fatal(err)
		}
		y, err := Decode(again)
		if err != nil || cmp.Diff(x, y) != "" {
			t.Fatalf("%v: %s", err, cmp.Diff(x, y))
		}
	})
}

// The tables themselves, without a compression that stops most of what a fuzzer tries.
func FuzzTables(f *testing.F) {
	blob, err := sample().Encode()
	if err != nil {
		f.Fatal(err)
	}
	raw, err := inflate(blob, MaxIndex)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := decodeRaw(data)
		if err == nil && x.Validate() != nil {
			t.Fatal("decoded what it would not encode")
		}
	})
}

// A stored frame that lies about itself never yields other than its size.
func FuzzFrame(f *testing.F) {
	f.Add([]byte("abc"), uint8(1), uint8(S2))
	f.Add(handmade, uint8(0), uint8(MinLZ))
	f.Fuzz(func(t *testing.T, stored []byte, pages, codec uint8) {
		pages = pages%FramePages + 1
		fr := Frame{Pages: pages, Codec: Codec(codec % 4), Stored: uint32(len(stored))}
		fr.BLAKE3 = hash(stored)
		var c Coder
		defer c.Close()
		raw, err := c.Decode(&fr, stored)
		if err == nil && len(raw) != int(pages)*PageSize {
			t.Fatalf("%d bytes for %d pages", len(raw), pages)
		}
	})
}
