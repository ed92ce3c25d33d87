package precopy

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/format"
)

const pageSize = format.PageSize

// Area is an address space whose pages are read.
type Area struct {
	Space
	Number int   // its place in the list of areas
	Size   int64 // bytes

	mem    []byte // RAM: the file, mapped; nil: it is read
	blocks []*Block
	data   []Mask // of the pass: pages that are no holes
	stamp  stamp  // of a disk; of RAM, when it was surveyed

	touched []Mask // pages that were written since it was known where data is
	looked  bool   // all of it was looked at
	short   bool   // there was more data than the last rescan found

	inherited bool // something is known from before the restore

	clones bool   // of a disk: the pause clones it
	cloned bool   // File is the clone
	still  bool   // nothing writes to it any more
	noted  bool   // of a disk: what was written since the pass before is due
	whole  string // why it is not cloned
	asked  uint64 // pages that the pass looks at
	read   uint64 // bytes that were looked at in the pause
}

// NewArea makes one of which nothing is known.
func NewArea(s Space, number int, size int64) *Area {
	n := (size + blockSize - 1) / blockSize
	return &Area{Space: s, Number: number, Size: size, blocks: make([]*Block, n), data: make([]Mask, n),
		touched: make([]Mask, n)}
}

// Block is a part of the area, made if nothing is known of it.
func (a *Area) Block(number int) *Block {
	if a.blocks[number] == nil {
		a.blocks[number] = new(Block)
	}
	return a.blocks[number]
}

// Inherit says that it is known what a page was when the VM was restored.
func (a *Area) Inherit(page uint64) {
	a.inherited = true
	b, i := a.Block(int(page/BlockPages)), int(page%BlockPages)
	b.known.Set(i)
	b.fresh.Set(i)
}

// Inherited reports whether something is known from before the restore.
func (a *Area) Inherited() bool { return a.inherited }

// Forget makes pages such as were never seen.
func (a *Area) Forget(block int, pages *Mask) {
	if b := a.blocks[block]; b != nil {
		b.forget(pages)
	}
}

// Mapped reports whether pages are read where the VM may write to them.
func (a *Area) Mapped() bool { return a.mem != nil }

// Cloned reports whether what is read is a clone, which nothing writes to.
func (a *Area) Cloned() bool { return a.cloned }

// open maps RAM: looking at a page costs no call then.
func (a *Area) open() error {
	if a.Disk != "" || a.Size == 0 {
		return nil
	}
	mem, err := unix.Mmap(int(a.File.Fd()), 0, int(a.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s: %w", a.Name, err)
	}
	a.mem = mem
	return nil
}

func (a *Area) close() {
	if a.mem != nil {
		_ = unix.Munmap(a.mem)
		a.mem = nil
	}
}

// Same reports whether the page at an offset has these bytes; buf is for a page that has to be read.
// A mapped page that was a hole as the pass began has not, and is not touched.
func (a *Area) Same(offset int64, page, buf *[pageSize]byte) (bool, error) {
	if a.mem != nil && offset+pageSize <= a.Size {
		if !a.data[offset/blockSize].Has(int(offset % blockSize / pageSize)) {
			return false, nil
		}
		return [pageSize]byte(a.mem[offset:offset+pageSize]) == *page, nil
	}
	n := min(pageSize, int(a.Size-offset)) // the last page of a disk may be partial
	clear(buf[n:])
	if _, err := a.File.ReadAt(buf[:n], offset); err != nil {
		return false, fmt.Errorf("read %s at %d: %w", a.Name, offset, err)
	}
	return *buf == *page, nil
}

// Reader reads blocks in one goroutine. What it answers of a disk is valid until the next call.
type Reader struct{ buf []byte }

// Read answers pages as they are, or as they were a moment ago.
func (r *Reader) Read(a *Area, block, from, to int) ([]byte, error) {
	base := int64(block) * blockSize
	offset, end := base+int64(from)*pageSize, base+int64(to)*pageSize
	if a.mem != nil && end <= a.Size {
		data := a.mem[offset:end:end]
		// the first look: one call instead of a fault for each page
		if b := a.blocks[block]; !b.known.Has(from) || b.fresh.Has(from) {
			if err := unix.Madvise(data, unix.MADV_POPULATE_READ); err != nil && !errors.Is(err, unix.EINVAL) {
				return nil, fmt.Errorf("read %s at %d: %w", a.Name, offset, err)
			}
		}
		return data, nil
	}
	if r.buf == nil {
		r.buf = make([]byte, blockSize)
	}
	buf := r.buf[:end-offset]
	n, err := a.File.ReadAt(buf, offset)
	if errors.Is(err, io.EOF) && offset+int64(n) == a.Size {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("read %s at %d: %w", a.Name, offset, err)
	}
	clear(buf[n:]) // the last page of a disk may be partial
	return buf, err
}

// Item is a block and the pages of it that are looked at.
type Item struct {
	Area   *Area
	Number int // of the block
	Pages  Mask
}

// First is the number of the block's first page.
func (it *Item) First() uint64 { return uint64(it.Number) * BlockPages }

// Each reads the pages and calls do for each one, by its number in the block.
func (it *Item) Each(r *Reader, do func(i int, page []byte) error) error {
	return it.Pages.Runs(func(from, to int) error {
		data, err := r.Read(it.Area, it.Number, from, to)
		if err != nil {
			return err
		}
		for i := from; i < to; i++ {
			at := (i - from) * pageSize
			if err := do(i, data[at:at+pageSize]); err != nil {
				return err
			}
		}
		return nil
	})
}
