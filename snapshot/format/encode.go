package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
)

var le = binary.LittleEndian

// Encode returns the index blob. It refuses an index that Decode would.
func (x *Index) Encode() ([]byte, error) {
	if err := x.Validate(); err != nil {
		return nil, err
	}
	runs := 0
	for i := range x.Spaces {
		runs += len(x.Spaces[i].Runs)
	}
	size := rawSize(len(x.Spaces), len(x.Packs), len(x.Frames), runs)
	if size > MaxIndex {
		return nil, fmt.Errorf("index: %d bytes of at most %d: %w", size, MaxIndex, errdefs.ErrResourceExhausted)
	}
	raw := make([]byte, 0, size)
	raw = append(raw, indexMagic...)
	raw = le.AppendUint16(raw, Version)
	raw = le.AppendUint16(raw, indexPageBits)
	for _, n := range []int{len(x.Spaces), len(x.Packs), len(x.Frames), runs, 0} {
		raw = le.AppendUint32(raw, uint32(n))
	}
	raw = x.appendTables(raw)
	// Most of it are hashes: the next level takes twice the time for 1 % less.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	defer enc.Close()
	return enc.EncodeAll(raw, nil), nil
}

func rawSize(spaces, packs, frames, runs int) uint64 {
	return headerSize + spaceSize*uint64(spaces) + packSize*uint64(packs) + frameSize*uint64(frames) + runSize*uint64(runs)
}

func (x *Index) appendTables(raw []byte) []byte {
	first := 0
	for _, s := range x.Spaces {
		var name [maxSpaceName]byte
		copy(name[:], s.Name)
		raw = append(raw, name[:]...)
		raw = le.AppendUint64(raw, s.Size)
		raw = le.AppendUint32(raw, uint32(first))
		raw = le.AppendUint32(raw, uint32(len(s.Runs)))
		first += len(s.Runs)
	}
	for _, p := range x.Packs {
		raw = append(raw, p.SHA256[:]...)
		raw = le.AppendUint64(raw, p.Size)
	}
	for _, f := range x.Frames {
		raw = le.AppendUint32(raw, f.Pack)
		raw = le.AppendUint32(raw, f.Offset)
		raw = le.AppendUint32(raw, f.Stored)
		raw = append(raw, f.Pages, byte(f.Codec), 0, 0)
		raw = append(raw, f.BLAKE3[:]...)
	}
	for _, s := range x.Spaces {
		for _, r := range s.Runs {
			raw = le.AppendUint64(raw, r.Page)
			raw = le.AppendUint32(raw, r.Frame)
			raw = append(raw, r.Slot, r.Count, 0, 0)
		}
	}
	return raw
}

// Decode reads an index blob and validates it.
func Decode(blob []byte) (*Index, error) {
	raw, err := inflate(blob, MaxIndex)
	if err != nil {
		return nil, err
	}
	return decodeRaw(raw)
}

func decodeRaw(raw []byte) (*Index, error) {
	if len(raw) < headerSize || string(raw[:8]) != indexMagic {
		return nil, invalid("no index: wrong magic or short")
	}
	if v := le.Uint16(raw[8:]); v != Version {
		if v > Version {
			return nil, fmt.Errorf("index: version %d, this build reads %d: %w", v, Version, errdefs.ErrNotImplemented)
		}
		return nil, invalid("version %d", v)
	}
	if bits := le.Uint16(raw[10:]); bits != indexPageBits {
		return nil, fmt.Errorf("index: pages of 2^%d bytes: %w", bits, errdefs.ErrNotImplemented)
	}
	spaces, packs, frames, runs := le.Uint32(raw[12:]), le.Uint32(raw[16:]), le.Uint32(raw[20:]), le.Uint32(raw[24:])
	if spaces > MaxSpaces || packs > MaxPacks {
		return nil, invalid("%d spaces, %d packs: more than %d, %d", spaces, packs, MaxSpaces, MaxPacks)
	}
	// The tables are bounded by the bytes that are really there.
	if want := rawSize(int(spaces), int(packs), int(frames), int(runs)); le.Uint32(raw[28:]) != 0 ||
		want != uint64(len(raw)) {
		return nil, invalid("%d bytes, its tables need %d", len(raw), want)
	}
	x := &Index{Spaces: make([]Space, spaces), Packs: make([]Pack, packs), Frames: make([]Frame, frames)}
	if err := x.decodeTables(raw[headerSize:], int(runs)); err != nil {
		return nil, err
	}
	return x, x.Validate()
}

// inflate decodes as a stream, so that a small blob cannot claim a large buffer.
func inflate(blob []byte, limit int64) ([]byte, error) {
	dec, err := zstd.NewReader(bytes.NewReader(blob), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(uint64(limit)))
	if err != nil {
		return nil, invalid("zstd: %v", err)
	}
	defer dec.Close()
	raw, err := io.ReadAll(io.LimitReader(dec, limit+1))
	if err != nil {
		return nil, invalid("zstd: %v", err)
	}
	if int64(len(raw)) > limit {
		return nil, invalid("more than %d bytes", limit)
	}
	return raw, nil
}

func (x *Index) decodeTables(raw []byte, runs int) error {
	counts := make([]uint32, len(x.Spaces))
	for i := range x.Spaces {
		name := raw[:maxSpaceName]
		end := bytes.IndexByte(name, 0)
		if end < 0 || len(bytes.Trim(name[end:], "\x00")) != 0 {
			return invalid("space %d: name", i)
		}
		x.Spaces[i].Name, x.Spaces[i].Size = string(name[:end]), le.Uint64(raw[16:])
		first := le.Uint32(raw[24:])
		counts[i] = le.Uint32(raw[28:])
		if i == 0 && first != 0 || i > 0 && uint64(first) != sum(counts[:i]) {
			return invalid("space %d: runs do not follow those before", i)
		}
		raw = raw[spaceSize:]
	}
	if sum(counts) != uint64(runs) {
		return invalid("%d runs in spaces, %d in all", sum(counts), runs)
	}
	for i := range x.Packs {
		copy(x.Packs[i].SHA256[:], raw)
		x.Packs[i].Size = le.Uint64(raw[32:])
		raw = raw[packSize:]
	}
	for i := range x.Frames {
		f := &x.Frames[i]
		f.Pack, f.Offset, f.Stored = le.Uint32(raw), le.Uint32(raw[4:]), le.Uint32(raw[8:])
		f.Pages, f.Codec = raw[12], Codec(raw[13])
		if raw[14]|raw[15] != 0 {
			return invalid("frame %d: reserved bytes", i)
		}
		copy(f.BLAKE3[:], raw[16:])
		raw = raw[frameSize:]
	}
	for i := range x.Spaces {
		x.Spaces[i].Runs = make([]Run, counts[i])
		for j := range x.Spaces[i].Runs {
			x.Spaces[i].Runs[j] = Run{Page: le.Uint64(raw), Frame: le.Uint32(raw[8:]), Slot: raw[12], Count: raw[13]}
			if raw[14]|raw[15] != 0 {
				return invalid("space %d: run %d: reserved bytes", i, j)
			}
			raw = raw[runSize:]
		}
	}
	return nil
}

func sum(counts []uint32) (n uint64) {
	for _, c := range counts {
		n += uint64(c)
	}
	return n
}
