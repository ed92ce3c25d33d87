package pagetable

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/internal/errno"
	"godwit.dev/godwit/snapshot/seal"
)

// Writer makes a table while pages pass.
type Writer struct {
	f *os.File

	mu     sync.Mutex
	header header
	off    int64
}

// NewSeed makes sums such that a guest cannot know which pages have the same.
func NewSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// NewKey makes one of a Hasher.
func NewKey() (key [32]byte) {
	_, _ = rand.Read(key[:]) // never fails
	return key
}

// NewWriter begins a table with an encoded index, and the keys of its packs.
func NewWriter(f *os.File, repository string, index []byte, keys []*seal.Key) (*Writer, error) {
	if len(repository) > 1<<15 {
		return nil, fmt.Errorf("page table: repository: %d bytes: %w", len(repository), errdefs.ErrInvalidArgument)
	}
	if err := f.Truncate(0); err != nil {
		return nil, fmt.Errorf("page table: %w", err)
	}
	w := &Writer{f: f, off: headerSize, header: header{
		Magic: magic, Version: version.Table, Repository: uint16(len(repository)), Index: uint32(len(index)),
		Key: NewKey(), Seed: NewSeed(),
	}}
	return w, w.write(AppendKeys(append([]byte(repository), index...), keys), 0)
}

// Take gives the table the key and the seed of another one, whose entries come into it.
func (w *Writer) Take(key [32]byte, seed uint64) { w.header.Key, w.header.Seed = key, seed }

// Key of the table's hashes.
func (w *Writer) Key() [32]byte { return w.header.Key }

// Entry is that of a page. The hasher has the table's key.
func (w *Writer) Entry(h Hasher, page []byte, frame, slot uint32) Entry {
	e := NewEntry(page, w.header.Seed, h)
	e.Frame, e.Slot = frame, slot
	return e
}

// Append adds encoded entries.
func (w *Writer) Append(entries []byte) error { return w.write(entries, len(entries)/EntrySize) }

func (w *Writer) write(data []byte, entries int) error {
	w.mu.Lock()
	at := w.off
	w.off += int64(len(data))
	w.header.Entries += uint64(entries)
	w.mu.Unlock()
	if _, err := w.f.WriteAt(data, at); err != nil {
		return errno.Classed(fmt.Errorf("write page table: %w", err))
	}
	return nil
}

// Close finishes the table.
func (w *Writer) Close() error {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, w.header); err != nil {
		return fmt.Errorf("page table: %w", err)
	}
	if _, err := w.f.WriteAt(b.Bytes(), 0); err != nil {
		return fmt.Errorf("page table: %w", err)
	}
	return nil
}
