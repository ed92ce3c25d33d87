package format

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/minio/minlz"
	"github.com/zeebo/blake3"

	"godwit.dev/godwit/snapshot/seal"
)

// Codec of a frame.
type Codec uint8

// Codecs of version 1.
const (
	Raw   Codec = 0
	Zstd  Codec = 1
	S2    Codec = 2
	MinLZ Codec = 3 // https://github.com/minio/minlz/blob/v1.2.3/SPEC.md, a block

	// Sealed is added to the codec of a frame whose stored bytes are sealed, after they
	// were encoded.
	Sealed Codec = 128
)

func (c Codec) known() bool { return c.plain() <= MinLZ }

func (c Codec) plain() Codec { return c &^ Sealed }

// overhead is how much longer than its pages a frame may be.
func (c Codec) overhead() uint32 {
	if c&Sealed != 0 {
		return seal.Overhead
	}
	return 0
}

// Coder encodes and decodes frames. It belongs to one goroutine.
type Coder struct {
	// Key, if set, seals what is encoded and opens what is sealed.
	Key *seal.Key

	enc    *zstd.Encoder
	dec    *zstd.Decoder
	buf    []byte
	sealed []byte
}

// sealAbout binds sealed bytes to what they are.
const sealAbout = "frame"

// Close releases what the codecs hold.
func (c *Coder) Close() {
	if c.enc != nil {
		c.enc.Close()
	}
	if c.dec != nil {
		c.dec.Close()
	}
}

// room is the coder's own buffer, of n bytes or more.
func (c *Coder) room(n int) []byte {
	if cap(c.buf) < n {
		c.buf = make([]byte, n)
	}
	return c.buf[:cap(c.buf)]
}

// Encode returns the stored bytes of raw pages and their frame, less its place. A frame
// that does not shrink stays raw. The bytes are valid until the next call.
func (c *Coder) Encode(codec Codec, raw []byte) ([]byte, Frame, error) {
	stored, f, err := c.Pack(codec, raw)
	if err == nil {
		f.BLAKE3 = hash(stored)
	}
	return stored, f, err
}

// Pack is Encode that leaves the hash to the caller.
func (c *Coder) Pack(codec Codec, raw []byte) ([]byte, Frame, error) {
	f := Frame{Pages: uint8(len(raw) / PageSize), Codec: codec}
	stored := raw
	switch codec {
	case Raw:
	case S2:
		stored = s2.Encode(c.room(s2.MaxEncodedLen(MaxFrame)), raw)
	case MinLZ:
		if b := minlz.TryEncode(c.room(minlz.MaxEncodedLen(MaxFrame)), raw, minlz.LevelSuperFast); b != nil {
			stored = b
		}
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
	if c.Key != nil {
		var err error
		if c.sealed, err = c.Key.Seal(c.sealed[:0], stored, sealAbout); err != nil {
			return nil, f, err
		}
		stored, f.Codec = c.sealed, f.Codec|Sealed
	}
	f.Stored = uint32(len(stored))
	return stored, f, nil
}

// Decode verifies stored bytes against their frame and returns the raw pages, valid
// until the next call.
func (c *Coder) Decode(f *Frame, stored []byte) ([]byte, error) {
	return c.DecodeTo(c.room(MaxFrame), f, stored)
}

// DecodeTo is Decode into a buffer that has room for the frame. What it returns is valid as
// long as the buffer and, of a frame that is raw, stored are.
func (c *Coder) DecodeTo(dst []byte, f *Frame, stored []byte) ([]byte, error) {
	if len(stored) != int(f.Stored) || hash(stored) != f.BLAKE3 {
		return nil, fmt.Errorf("frame at %d: hash of its bytes differs: %w", f.Offset, errdefs.ErrDataLoss)
	}
	return c.unpack(dst, f, stored)
}

// Unpack is Decode of bytes that somebody else has verified.
func (c *Coder) Unpack(pages int, codec Codec, stored []byte) ([]byte, error) {
	if pages < 1 || pages*PageSize > MaxFrame {
		return nil, fmt.Errorf("frame of %d pages: %w", pages, errdefs.ErrDataLoss)
	}
	return c.unpack(c.room(MaxFrame), &Frame{Pages: uint8(pages), Codec: codec}, stored)
}

func (c *Coder) unpack(dst []byte, f *Frame, stored []byte) ([]byte, error) {
	size := int(f.Pages) * PageSize
	if len(dst) < size {
		return nil, fmt.Errorf("frame at %d: room for %d bytes of %d: %w", f.Offset, len(dst), size,
			errdefs.ErrInvalidArgument)
	}
	dst = dst[:size:size]
	var raw []byte
	var err error
	if f.Codec&Sealed != 0 {
		if c.Key == nil {
			return nil, fmt.Errorf("frame at %d: sealed, and its pack has no key: %w", f.Offset, errdefs.ErrDataLoss)
		}
		if c.sealed, err = c.Key.Open(c.sealed[:0], stored, sealAbout); err != nil {
			return nil, fmt.Errorf("frame at %d: %w", f.Offset, err)
		}
		stored = c.sealed
	}
	switch f.Codec.plain() {
	case Raw:
		raw = stored
		if f.Codec&Sealed != 0 { // the next call opens another one there
			raw = append(dst[:0], stored...)
		}
	case S2:
		var n int
		if n, err = s2.DecodedLen(stored); err == nil && n == size {
			raw, err = s2.Decode(dst, stored)
		}
	case MinLZ:
		var n int
		var own bool // its decoder takes S2 as well
		if own, n, err = minlz.IsMinLZ(stored); err == nil && own && n == size {
			raw, err = minlz.Decode(dst, stored)
		}
	case Zstd:
		if c.dec == nil {
			if c.dec, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1),
				zstd.WithDecoderMaxMemory(MaxFrame)); err != nil {
				return nil, fmt.Errorf("zstd: %w", err)
			}
		}
		raw, err = c.dec.DecodeAll(stored, dst[:0])
	default:
		return nil, fmt.Errorf("frame at %d: codec %d: %w", f.Offset, f.Codec, errdefs.ErrNotImplemented)
	}
	if err != nil || len(raw) != size {
		return nil, fmt.Errorf("frame at %d: %d bytes of %d, %v: %w", f.Offset, len(raw), size, err, errdefs.ErrDataLoss)
	}
	return raw, nil
}

func hash(stored []byte) [32]byte { return blake3.Sum256(stored) }
