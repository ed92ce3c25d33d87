package format

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"
)

// Codec of a frame.
type Codec uint8

// Codecs of version 1.
const (
	Raw  Codec = 0
	Zstd Codec = 1
	S2   Codec = 2
)

func (c Codec) known() bool { return c <= S2 }

// Coder encodes and decodes frames. It belongs to one goroutine.
type Coder struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
	buf []byte
}

// Close releases what the codecs hold.
func (c *Coder) Close() {
	if c.enc != nil {
		c.enc.Close()
	}
	if c.dec != nil {
		c.dec.Close()
	}
}

// Encode returns the stored bytes of raw pages and their frame, less its place. A frame
// that does not shrink stays raw. The bytes are valid until the next call.
func (c *Coder) Encode(codec Codec, raw []byte) ([]byte, Frame, error) {
	f := Frame{Pages: uint8(len(raw) / PageSize), Codec: codec}
	stored := raw
	switch codec {
	case Raw:
	case S2:
		if n := s2.MaxEncodedLen(MaxFrame); cap(c.buf) < n {
			c.buf = make([]byte, n)
		}
		stored = s2.Encode(c.buf[:cap(c.buf)], raw)
	case Zstd:
		if c.enc == nil {
			enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
				zstd.WithWindowSize(MaxFrame), zstd.WithEncoderCRC(false))
			if err != nil {
				return nil, f, fmt.Errorf("zstd: %w", err)
			}
			c.enc = enc
		}
		c.buf = c.enc.EncodeAll(raw, c.buf[:0])
		stored = c.buf
	default:
		return nil, f, fmt.Errorf("codec %d: %w", codec, errdefs.ErrNotImplemented)
	}
	// A gain below 3 % is not worth a decoder's time on every restore.
	if len(stored) > len(raw)-len(raw)/32 {
		stored, f.Codec = raw, Raw
	}
	f.Stored = uint32(len(stored))
	f.BLAKE3 = hash(stored)
	return stored, f, nil
}

// Decode verifies stored bytes against their frame and returns the raw pages, valid
// until the next call.
func (c *Coder) Decode(f *Frame, stored []byte) ([]byte, error) {
	if len(stored) != int(f.Stored) || hash(stored) != f.BLAKE3 {
		return nil, fmt.Errorf("frame at %d: hash of its bytes differs: %w", f.Offset, errdefs.ErrDataLoss)
	}
	size := int(f.Pages) * PageSize
	if cap(c.buf) < MaxFrame {
		c.buf = make([]byte, MaxFrame)
	}
	var raw []byte
	var err error
	switch f.Codec {
	case Raw:
		raw = stored
	case S2:
		var n int
		if n, err = s2.DecodedLen(stored); err == nil && n == size {
			raw, err = s2.Decode(c.buf[:size], stored)
		}
	case Zstd:
		if c.dec == nil {
			if c.dec, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxFrame)); err != nil {
				return nil, fmt.Errorf("zstd: %w", err)
			}
		}
		raw, err = c.dec.DecodeAll(stored, c.buf[:0])
	default:
		return nil, fmt.Errorf("frame at %d: codec %d: %w", f.Offset, f.Codec, errdefs.ErrNotImplemented)
	}
	if err != nil || len(raw) != size {
		return nil, fmt.Errorf("frame at %d: %d bytes of %d, %v: %w", f.Offset, len(raw), size, err, errdefs.ErrDataLoss)
	}
	return raw, nil
}

func hash(stored []byte) [32]byte { return blake3.Sum256(stored) }
