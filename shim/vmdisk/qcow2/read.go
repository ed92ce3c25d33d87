package qcow2

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"io"

	"github.com/klauspost/compress/zstd"
)

// What the entries of the tables say.
const (
	offsetMask = 0x00fffffffffffe00
	compressed = 1 << 62
	zero       = 1 // of version 3
)

// Each calls fn for every cluster that has content, in the order of the disk. data is
// valid during the call, and short for the last cluster.
func (m *Image) Each(ctx context.Context, fn func(at int64, data []byte) error) error {
	r, err := m.reader()
	if err != nil {
		return err
	}
	defer r.close()
	return m.walk(ctx, func(at int64, entry uint64) error {
		buf := r.cluster[:min(int64(len(r.cluster)), m.Size-at)]
		if err := r.fill(buf, entry); err != nil {
			return err
		}
		return fn(at, buf)
	})
}

// Allocated is how many bytes Each hands out at most.
func (m *Image) Allocated(ctx context.Context) (total int64, err error) {
	err = m.walk(ctx, func(int64, uint64) error {
		total += 1 << m.bits
		return nil
	})
	return total, err
}

// walk calls fn with the entry of every cluster that has content.
func (m *Image) walk(ctx context.Context, fn func(at int64, entry uint64) error) error {
	table := make([]byte, 1<<m.bits)
	perTable := int64(len(table) / 8)
	for i, l2 := range m.l1 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if l2&offsetMask == 0 {
			continue
		}
		if err := m.aligned(l2 & offsetMask); err != nil {
			return err
		}
		if err := m.readAt(table, l2&offsetMask); err != nil {
			return err
		}
		for j := range perTable {
			at := (int64(i)*perTable + j) << m.bits
			if at >= m.Size {
				break
			}
			entry := binary.BigEndian.Uint64(table[8*j:])
			switch {
			case entry&compressed != 0:
			case entry&offsetMask == 0 || m.v3 && entry&zero != 0:
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := fn(at, entry); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Image) aligned(at uint64) error {
	if at&(1<<m.bits-1) != 0 {
		return errMalformed("a cluster begins at %d, which is none's place", at)
	}
	return nil
}

type reader struct {
	image   *Image
	cluster []byte
	packed  []byte
	flate   io.ReadCloser
	zstd    *zstd.Decoder
}

func (m *Image) reader() (*reader, error) {
	r := &reader{image: m, cluster: make([]byte, 1<<m.bits)}
	if !m.zstd {
		r.flate = flate.NewReader(bytes.NewReader(nil))
		return r, nil
	}
	var err error
	r.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(8<<20))
	return r, err
}

func (r *reader) close() {
	if r.zstd != nil {
		r.zstd.Close()
	}
}

func (r *reader) fill(buf []byte, entry uint64) error {
	m := r.image
	if entry&compressed != 0 {
		return r.unpack(buf, entry&^(3<<62))
	}
	at := entry & offsetMask
	if err := m.aligned(at); err != nil {
		return err
	}
	// The file may end within its last cluster: the rest of it reads as zeros.
	if rest := uint64(m.length) - min(at, uint64(m.length)); rest > 0 && rest < uint64(len(buf)) {
		clear(buf[rest:])
		buf = buf[:rest]
	}
	return m.readAt(buf, at)
}

// unpack takes a cluster whose compressed bytes end somewhere in their last sector.
func (r *reader) unpack(buf []byte, descriptor uint64) error {
	m := r.image
	split := 62 - (m.bits - 8)
	at := descriptor & (1<<split - 1)
	size := (descriptor>>split+1)*512 - at&511
	if at < uint64(m.length) {
		size = min(size, uint64(m.length)-at) // the last sector may be cut
	}
	if uint64(cap(r.packed)) < size {
		r.packed = make([]byte, size)
	}
	r.packed = r.packed[:size]
	if err := m.readAt(r.packed, at); err != nil {
		return err
	}
	source := bytes.NewReader(r.packed)
	var from io.Reader = r.flate
	var err error
	if r.zstd != nil {
		from, err = r.zstd, r.zstd.Reset(source)
	} else {
		err = r.flate.(flate.Resetter).Reset(source, nil)
	}
	if err == nil {
		// A whole cluster is packed, also the one that the disk ends in.
		_, err = io.ReadFull(from, r.cluster[:len(buf)])
	}
	if err != nil {
		return errMalformed("the compressed cluster at %d: %v", at, err)
	}
	return nil
}
