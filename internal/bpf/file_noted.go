package bpf

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notedWords are the value of the map.
type notedWords []uint64

// Blocks of a file: the least one is a page. There is a MiB of bits of a kind at most.
const (
	leastShift = 12
	mostBlocks = 1 << 23
)

func notedShift(size int64) (shift int32, blocks uint32) {
	for shift = leastShift; (size-1)>>shift >= mostBlocks; {
		shift++
	}
	return shift, uint32((size-1)>>shift) + 1
}

func notedWordsOf(blocks uint32) int { return int(blocks+63) / 64 }

func notedSize(blocks uint32) int { return bitsAt + 2*8*notedWordsOf(blocks) }

func (w notedWords) get(at int) uint64    { return atomic.LoadUint64(&w[at/8]) }
func (w notedWords) set(at int, v uint64) { atomic.StoreUint64(&w[at/8], v) }

// lose ends the notes, unless they have ended.
func (w notedWords) lose(why uint64) { atomic.CompareAndSwapUint64(&w[lostAt/8], 0, why) }

// lost says why they have ended.
func (w notedWords) lost() error {
	if why := w.get(lostAt); why != 0 {
		return errors.New(lostReasons[why])
	}
	return nil
}

func mapNoted(table *os.File, blocks uint32) (notedWords, error) {
	size := (notedSize(blocks) + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
	b, err := unix.Mmap(int(table.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map notes: %w", err)
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8), nil
}

func (w notedWords) unmap() {
	_ = unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(w)*8))
}

// Noted reads the notes of a process that has FileNotes. It needs no rights.
type Noted struct {
	words  notedWords
	size   int64
	shift  int32
	blocks uint32
}

// OpenNoted reads the notes of a file of that size.
func OpenNoted(table *os.File, size int64) (*Noted, error) {
	n := &Noted{size: size}
	n.shift, n.blocks = notedShift(size)
	var err error
	n.words, err = mapNoted(table, n.blocks)
	return n, err
}

// Take calls written for each range that was written since it was called last. A page that is read after that has what
// was written. A range that was allocated, zeroed or punched is told each time: it is noted before it changes. Only
// if Settled was true before Take, and nothing is written since Settle, that is all.
func (n *Noted) Take(written func(offset, end int64)) {
	words := notedWordsOf(n.blocks)
	for i := range words {
		once := &n.words[bitsAt/8+i]
		var w uint64
		if atomic.LoadUint64(once) != 0 {
			w = atomic.SwapUint64(once, 0)
		}
		w |= atomic.LoadUint64(&n.words[bitsAt/8+words+i])
		n.each(i, w, written)
	}
}

func (n *Noted) each(word int, w uint64, written func(offset, end int64)) {
	for w != 0 {
		from := bits.TrailingZeros64(w)
		run := bits.TrailingZeros64(^(w >> from))
		w &^= (1<<run - 1) << from
		at := (int64(word)*64 + int64(from)) << n.shift
		written(at, min(at+int64(run)<<n.shift, n.size))
	}
}

// Settled reports whether the notes are whole up to the last Settle.
func (n *Noted) Settled() bool { return n.words.get(settledAt) != 0 && n.words.lost() == nil }

// Close gives back what Noted holds. The notes go on.
func (n *Noted) Close() { n.words.unmap() }
