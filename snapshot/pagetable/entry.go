package pagetable

import (
	"encoding/binary"
	"io"

	"github.com/zeebo/xxh3"
)

// EntrySize is that of an entry in a file.
const EntrySize = 40

// Entry is one page. Its sum finds it, its keyed hash proves it. One without a hash is known at
// its own place alone.
type Entry struct {
	Sum   uint64
	More  uint64 // of the sum, for the same page of the same VM
	Hash  [16]byte
	Frame uint32
	Slot  uint32
}

// NewEntry is that of a page, without a frame.
func NewEntry(page []byte, seed uint64, h Hasher) Entry {
	sum := xxh3.Hash128Seed(page, seed)
	return Entry{Sum: sum.Lo, More: sum.Hi, Hash: h.Sum(page)}
}

// Whole is the sum of the same page of the same VM.
func (e *Entry) Whole() xxh3.Uint128 { return xxh3.Uint128{Lo: e.Sum, Hi: e.More} }

// Proved reports whether an entry stands for its page wherever that is found.
func (e *Entry) Proved() bool { return e.Hash != [16]byte{} }

// Append appends an entry as it lies in a file.
func (e Entry) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, e.Sum)
	b = binary.LittleEndian.AppendUint64(b, e.More)
	b = append(b, e.Hash[:]...)
	b = binary.LittleEndian.AppendUint32(b, e.Frame)
	return binary.LittleEndian.AppendUint32(b, e.Slot)
}

func readEntries(r io.Reader, entries []Entry) error {
	var b [EntrySize]byte
	for i := range entries {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return err
		}
		entries[i] = Entry{
			Sum: binary.LittleEndian.Uint64(b[:]), More: binary.LittleEndian.Uint64(b[8:]), Hash: [16]byte(b[16:32]),
			Frame: binary.LittleEndian.Uint32(b[32:]), Slot: binary.LittleEndian.Uint32(b[36:]),
		}
	}
	return nil
}
