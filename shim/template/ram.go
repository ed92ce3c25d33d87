package template

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	pageSize  = 4096
	blockSize = 256 << 10 // what one sum is of, and the shim has in memory; a multiple of pageSize
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pages are the runs of a RAM that are not zero, packed into one file without holes: no
// file system has to keep any, and none of them is lost unseen.
type pages struct {
	Size   uint64      `json:"size"`   // of the RAM
	Runs   [][2]uint64 `json:"runs"`   // first page and how many, in order
	Blocks []uint32    `json:"blocks"` // sum of each block of the packed file
}

// bytes of the packed file.
func (p *pages) bytes() uint64 {
	var n uint64
	for _, r := range p.Runs {
		n += r[1] * pageSize
	}
	return n
}

// check refuses what would be written outside of the RAM.
func (p *pages) check(size uint64) error {
	end := uint64(0)
	for _, r := range p.Runs {
		if r[0] < end || r[1] == 0 || r[1] > p.Size/pageSize || r[0] > p.Size/pageSize-r[1] {
			return damaged("runs of RAM")
		}
		end = r[0] + r[1]
	}
	if p.Size != size || uint64(len(p.Blocks)) != (p.bytes()+blockSize-1)/blockSize {
		return damaged("size of RAM")
	}
	return nil
}

func damaged(what string) error { return fmt.Errorf("%s: damaged: %w", what, errdefs.ErrDataLoss) }

// pack writes the pages of ram that are not zero to the file.
func pack(ctx context.Context, to, ram *os.File, size uint64) (*pages, error) {
	p := &pages{Size: size}
	out := &summed{w: to}
	buf := make([]byte, blockSize)
	for at := int64(0); at < int64(size); {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		from, err := unix.Seek(int(ram.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("find data of RAM: %w", err)
		}
		from -= from % pageSize
		n := min(int64(len(buf)), int64(size)-from)
		if _, err := ram.ReadAt(buf[:n], from); err != nil {
			return nil, fmt.Errorf("read RAM: %w", err)
		}
		for off := int64(0); off < n; off += pageSize {
			page := buf[off : off+pageSize]
			if zero(page) {
				continue
			}
			p.add(uint64(from+off) / pageSize)
			if _, err := out.Write(page); err != nil {
				return nil, fmt.Errorf("write RAM: %w", err)
			}
		}
		at = from + n
	}
	var err error
	p.Blocks, err = out.close()
	return p, err
}

func (p *pages) add(page uint64) {
	if n := len(p.Runs); n > 0 && p.Runs[n-1][0]+p.Runs[n-1][1] == page {
		p.Runs[n-1][1]++
		return
	}
	p.Runs = append(p.Runs, [2]uint64{page, 1})
}

var zeroPage [pageSize]byte

func zero(page []byte) bool { return string(page) == string(zeroPage[:]) }

// summed writes blocks and keeps the sum of each.
type summed struct {
	w    io.Writer
	buf  []byte
	sums []uint32
}

func (s *summed) Write(b []byte) (int, error) {
	s.buf = append(s.buf, b...)
	if len(s.buf) < blockSize {
		return len(b), nil
	}
	return len(b), s.flush()
}

func (s *summed) flush() error {
	s.sums = append(s.sums, crc32.Checksum(s.buf, castagnoli))
	_, err := s.w.Write(s.buf)
	s.buf = s.buf[:0]
	return err
}

func (s *summed) close() ([]uint32, error) {
	if len(s.buf) == 0 {
		return s.sums, nil
	}
	err := s.flush()
	return s.sums, err
}

// copyTo writes the pages to where they belong in ram, which is all zero. Each block is
// looked at before any of it is written.
func (p *pages) copyTo(ctx context.Context, ram, from *os.File) error {
	buf := make([]byte, blockSize)
	run, done, left := 0, uint64(0), p.bytes()
	for i, sum := range p.Blocks {
		if err := ctx.Err(); err != nil {
			return err
		}
		block := buf[:min(left, blockSize)]
		if _, err := from.ReadAt(block, int64(i)*blockSize); err != nil {
			return fmt.Errorf("read block %d of RAM: %w: %w", i, err, errdefs.ErrDataLoss)
		}
		if crc32.Checksum(block, castagnoli) != sum {
			return damaged(fmt.Sprintf("block %d of RAM", i))
		}
		left -= uint64(len(block))
		for len(block) > 0 {
			r := p.Runs[run]
			n := min(uint64(len(block)), (r[1]*pageSize)-done)
			if _, err := ram.WriteAt(block[:n], int64(r[0]*pageSize+done)); err != nil {
				return fmt.Errorf("write RAM: %w", err)
			}
			block, done = block[n:], done+n
			if done == r[1]*pageSize {
				run, done = run+1, 0
			}
		}
	}
	return nil
}
