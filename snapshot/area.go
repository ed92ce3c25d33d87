package snapshot

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/format"
)

// blockPages is what one core takes at a time: 1 MiB.
const (
	blockPages = 256
	blockSize  = blockPages * format.PageSize
)

// mask is a set of pages of a block.
type mask [blockPages / 64]uint64

func (m *mask) set(i int)      { m[i/64] |= 1 << (i % 64) }
func (m *mask) has(i int) bool { return m[i/64]&(1<<(i%64)) != 0 }
func (m *mask) empty() bool    { return *m == mask{} }

func (m *mask) count() (n int) {
	for _, w := range m {
		n += bits.OnesCount64(w)
	}
	return n
}

// setRange sets pages from, up to but not including to.
func (m *mask) setRange(from, to int) {
	for w := from / 64; w <= (to-1)/64; w++ {
		lo, hi := max(from-64*w, 0), min(to-64*w, 64)
		m[w] |= ^uint64(0) << lo & (^uint64(0) >> (64 - hi))
	}
}

func (m *mask) and(o *mask) (r mask) {
	for i := range m {
		r[i] = m[i] & o[i]
	}
	return r
}

func (m *mask) or(o *mask) (r mask) {
	for i := range m {
		r[i] = m[i] | o[i]
	}
	return r
}

func (m *mask) without(o *mask) (r mask) {
	for i := range m {
		r[i] = m[i] &^ o[i]
	}
	return r
}

// runs calls do for each run of pages that are set.
func (m *mask) runs(do func(from, to int) error) error {
	for at := 0; at < blockPages; at++ {
		if !m.has(at) {
			continue
		}
		from := at
		for at < blockPages && m.has(at) {
			at++
		}
		if err := do(from, at); err != nil {
			return err
		}
	}
	return nil
}

// mark is what was last seen of a page, and where that lies. No frame: the page was zero.
type mark struct {
	sum     xxh3.Uint128
	frame   *frame
	slot    uint8
	changes uint8
}

// block is what is known of a part of a space. In a pass it belongs to one goroutine.
type block struct {
	known mask // pages that were looked at, and are no hole since
	fresh mask // of them: looked at before the VM was restored, and not yet since
	due   mask // pages that were written since they were looked at
	left  mask // pages that keep changing: they are left for the pause
	marks [blockPages]mark
}

// area is an address space under capture.
type area struct {
	Space
	size   int64
	mem    []byte // RAM: the file, mapped; nil: it is read
	blocks []*block
	data   []mask // of the pass: pages that are no holes
	stamp  stamp  // of a disk; of RAM, when it was surveyed

	touched []mask // pages that were written since it was known where data is
	looked  bool   // all of it was looked at
	short   bool   // there was more data than the last glance found

	inherited bool // something is known from before the restore

	clones bool   // of a disk: the pause clones it
	cloned bool   // File is the clone
	still  bool   // nobody writes to it any more
	whole  string // why it is not cloned
	asked  uint64 // pages that the pass looks at
	read   uint64 // bytes that were looked at in the pause
}

func newArea(s Space, size int64) *area {
	n := (size + blockSize - 1) / blockSize
	return &area{Space: s, size: size, blocks: make([]*block, n), data: make([]mask, n), touched: make([]mask, n)}
}

// warm maps RAM: looking at a page costs no call then.
func (s *area) warm() error {
	if s.Disk != "" || s.size == 0 {
		return nil
	}
	mem, err := unix.Mmap(int(s.File.Fd()), 0, int(s.size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s: %w", s.Name, err)
	}
	s.mem = mem
	return nil
}

func (s *area) close() {
	if s.mem != nil {
		_ = unix.Munmap(s.mem)
		s.mem = nil
	}
}

// look finds out which pages have data, and forgets what was known of those that have
// none any more. It never touches a hole: reading one through a mapping would fill it.
// lost, unless nil, hears of pages that are holes now and were none.
func (s *area) look(lost func(s *area, number int, pages *mask) error) error {
	clear(s.data)
	clear(s.touched)
	err := extents(s.File, s.size, func(offset, end int64) error {
		for offset < end {
			b := offset / blockSize
			to := min(end, (b+1)*blockSize)
			pages := (to - b*blockSize + format.PageSize - 1) / format.PageSize
			s.data[b].setRange(int((offset-b*blockSize)/format.PageSize), int(pages))
			offset = to
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("scan %s: %w", s.Name, err)
	}
	s.looked, s.short = true, false
	return s.forget(lost)
}

// forget makes pages that are holes such as were never seen: they are looked at once there is
// data, whatever the tracker tells.
func (s *area) forget(lost func(s *area, number int, pages *mask) error) error {
	for i, b := range s.blocks {
		if b == nil {
			continue
		}
		b.due = b.due.and(&s.data[i])
		gone := b.known.without(&s.data[i])
		if gone.empty() {
			continue
		}
		if lost != nil {
			if err := lost(s, i, &gone); err != nil {
				return err
			}
		}
		b.forget(&gone)
	}
	return nil
}

// forget makes pages such as were never seen.
func (b *block) forget(pages *mask) {
	_ = pages.runs(func(from, to int) error {
		clear(b.marks[from:to])
		return nil
	})
	b.known, b.fresh, b.left = b.known.without(pages), b.fresh.without(pages), b.left.without(pages)
}

// written notes that pages of a range have to be looked at again.
func (s *area) written(offset, end int64) {
	end = min(end, s.size)
	for offset < end {
		i := offset / blockSize
		to := min(end, (i+1)*blockSize)
		first, last := int((offset-i*blockSize)/format.PageSize), int((to-i*blockSize+format.PageSize-1)/format.PageSize)
		s.touched[i].setRange(first, last)
		if b := s.blocks[i]; b != nil { // of another nothing is known
			b.due.setRange(first, last)
		}
		offset = to
	}
}

// stamp tells a disk that nobody has written to since: the kernel sets its times at every
// write, before the write is over.
type stamp struct {
	modified, changed unix.Timespec
	settled           bool // the last write was long enough ago to have another time than the next
}

// settleTime is several steps of the kernel's clock.
const settleTime = 100 * time.Millisecond

func stampOf(f *os.File) (stamp, error) {
	now := time.Now()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return stamp{}, err
	}
	last := time.Unix(st.Ctim.Unix())
	if m := time.Unix(st.Mtim.Unix()); m.After(last) {
		last = m
	}
	return stamp{modified: st.Mtim, changed: st.Ctim, settled: now.Sub(last) > settleTime}, nil
}

// quiet reports whether a disk is as it was when it was last looked at, and remembers how
// it is now.
func (s *area) quiet() (bool, error) {
	if s.Disk == "" || s.still {
		return s.still, nil
	}
	now, err := stampOf(s.File)
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", s.Name, err)
	}
	// Who reads waits for a write that set these times before and is still under way: XFS has
	// nobody else wait.
	var one [1]byte
	if _, err := s.File.ReadAt(one[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("look at %s: %w", s.Name, err)
	}
	before := s.stamp
	s.stamp = now
	return before.stands(now), nil
}

// stands reports whether nobody has written between both.
func (s stamp) stands(now stamp) bool {
	return s.settled && s.modified == now.modified && s.changed == now.changed
}

// blockReader reads blocks. What it answers of a disk is valid until the next call.
type blockReader struct{ buf []byte }

// read answers pages as they are, or as they were a moment ago.
func (r *blockReader) read(s *area, b *block, base int64, from, to int) ([]byte, error) {
	offset, end := base+int64(from)*format.PageSize, base+int64(to)*format.PageSize
	if s.mem != nil && end <= s.size {
		data := s.mem[offset:end:end]
		if !b.known.has(from) || b.fresh.has(from) { // the first look: one call instead of a fault for each page
			if err := unix.Madvise(data, unix.MADV_POPULATE_READ); err != nil && !errors.Is(err, unix.EINVAL) {
				return nil, err
			}
		}
		return data, nil
	}
	if r.buf == nil {
		r.buf = make([]byte, blockSize)
	}
	buf := r.buf[:end-offset]
	n, err := s.File.ReadAt(buf, offset)
	if errors.Is(err, io.EOF) && offset+int64(n) == s.size {
		err = nil
	}
	clear(buf[n:]) // the last page of a disk may be partial
	return buf, err
}

// leave reports whether a page that has changed keeps changing: it is left for the pause,
// as what was stored or sent of it would be dead.
func (b *block) leave(i int) bool {
	m := &b.marks[i]
	if m.changes < mostChanges {
		m.changes++
		return false
	}
	b.left.set(i)
	return true
}
