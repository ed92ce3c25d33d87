package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/snapshot/format"
)

// pages writes a frame of pages to where they belong.
func (r *receiver) pages(coder *format.Coder, f *Frame) error {
	if err := f.Verify(); err != nil {
		return err
	}
	s, err := r.space(f)
	if err != nil {
		return err
	}
	if len(f.Body) == 0 || f.Body[0] == 0 || int(f.Body[0]) > format.MaxFrame/format.PageSize ||
		len(f.Body) < 1+8*int(f.Body[0]) {
		return broken("frame of pages with %d bytes", len(f.Body))
	}
	count := int(f.Body[0])
	numbers, stored := f.Body[1:1+8*count], f.Body[1+8*count:]
	raw, err := coder.Unpack(count, f.Codec, stored)
	if err != nil {
		return err
	}
	number := func(i int) uint64 { return binary.LittleEndian.Uint64(numbers[8*i:]) }
	for from := 0; from < count; {
		to := from + 1
		for to < count && number(to) == number(to-1)+1 {
			to++
		}
		data := raw[from*format.PageSize : to*format.PageSize]
		if err := s.write(number(from), data); err != nil {
			return err
		}
		if f.Space == 0 {
			r.since.came(number(from), data)
		}
		from = to
	}
	return nil
}

func (r *receiver) space(f *Frame) (*TargetSpace, error) {
	if f.Space >= len(r.t.Spaces) {
		return nil, broken("frame of space %d of %d", f.Space, len(r.t.Spaces))
	}
	return &r.t.Spaces[f.Space], nil
}

// within answers where pages lie, which must be in the space; the last one may be partial.
func (s *TargetSpace) within(page, count uint64) (offset, size int64, err error) {
	all := uint64(s.Size+format.PageSize-1) / format.PageSize
	if page >= all || count > all-page {
		return 0, 0, broken("pages %d to %d of %s, which has %d", page, page+count, s.Name, all)
	}
	offset = int64(page) * format.PageSize
	return offset, min(int64(count)*format.PageSize, s.Size-offset), nil
}

func (s *TargetSpace) write(page uint64, data []byte) error {
	offset, size, err := s.within(page, uint64(len(data)/format.PageSize))
	if err != nil {
		return err
	}
	if _, err := s.File.WriteAt(data[:size], offset); err != nil {
		return fileError(s.Name, err)
	}
	return nil
}

// zeros makes holes of pages. Frames of pages that came before have been written: a page
// is in one frame between two barriers.
func (r *receiver) zeros(f *Frame) error {
	s, err := r.space(f)
	if err != nil {
		return err
	}
	if len(f.Body) == 0 || len(f.Body)%16 != 0 || len(f.Body)/16 > maxRuns {
		return broken("frame of zeros with %d bytes", len(f.Body))
	}
	for at := 0; at < len(f.Body); at += 16 {
		page, count := binary.LittleEndian.Uint64(f.Body[at:]), binary.LittleEndian.Uint64(f.Body[at+8:])
		offset, size, err := s.within(page, count)
		if err == nil && size > 0 {
			err = punch(s.File, offset, size)
		}
		if err != nil {
			return err
		}
		if f.Space == 0 {
			r.since.zeros(page, count)
		}
	}
	return nil
}

// punch makes zeros of a range, without room where the file system can.
func punch(f *os.File, offset, size int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, size)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		if err != nil {
			return fileError("zeros", err)
		}
		return nil
	}
	none := make([]byte, min(size, 1<<20))
	for size > 0 {
		n := min(size, int64(len(none)))
		if _, err := f.WriteAt(none[:n], offset); err != nil {
			return fileError("zeros", err)
		}
		offset, size = offset+n, size-n
	}
	return nil
}

// fileError gives the error of a write its class.
func fileError(what string, err error) error {
	if durable.IsFull(err) {
		return fmt.Errorf("write %s: %w: %w", what, err, errdefs.ErrResourceExhausted)
	}
	return fmt.Errorf("write %s: %w: %w", what, err, errdefs.ErrInternal)
}
