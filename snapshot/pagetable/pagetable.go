// Package pagetable is the file in which a node notes the pages of a snapshot, by content: what of
// them is still in the VM need not be pushed again. A restore writes it while its pages pass, a push
// reads it. It is for its owner only, because its key decides what counts as equal. It is no part of
// the format of snapshots.
//
//	header | repository | index (package format) | keys of packs | entries
package pagetable

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/seal"
)

// header is written last: a file without it is no table.
type header struct {
	Magic      [8]byte
	Version    uint16
	Repository uint16 // bytes
	Index      uint32 // bytes
	Entries    uint64
	Seed       uint64
	Key        [32]byte
}

const (
	headerSize = 64
	maxEntries = 1 << 30
)

var magic = [8]byte{'G', 'O', 'D', 'W', 'I', 'T', 'P', 'T'}

// File is what a table says.
type File struct {
	Key        [32]byte // of Hasher
	Seed       uint64   // of the sums
	Repository string   // where the packs are
	Index      *format.Index
	Packs      []PackKey // by pack of the index
	Entries    []Entry
}

// Read reads a table. It is NotFound if its writer did not finish it.
func Read(f *os.File) (*File, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("page table: %w", err)
	}
	size := st.Size()
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, size), 1<<20)
	h, err := readHeader(r)
	if err != nil {
		return nil, err
	}
	if uint64(h.Repository)+uint64(h.Index) > uint64(size) {
		return nil, fmt.Errorf("page table: index of %d bytes in %d: %w", h.Index, size, errdefs.ErrDataLoss)
	}
	head := make([]byte, int(h.Repository)+int(h.Index))
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("page table: %w", err)
	}
	index, err := format.Decode(head[h.Repository:])
	if err != nil {
		return nil, fmt.Errorf("page table: %w", err)
	}
	keys := make([]PackKey, len(index.Packs))
	rest := uint64(size) - headerSize - uint64(len(head))
	if err := binary.Read(r, binary.LittleEndian, keys); err != nil {
		return nil, fmt.Errorf("page table: keys: %w: %w", err, errdefs.ErrDataLoss)
	}
	rest -= PackKeySize * uint64(len(keys))
	if h.Entries > maxEntries || rest != EntrySize*h.Entries {
		return nil, fmt.Errorf("page table: %d bytes for %d entries: %w", size, h.Entries, errdefs.ErrDataLoss)
	}
	entries := make([]Entry, h.Entries)
	if err := readEntries(r, entries); err != nil {
		return nil, fmt.Errorf("page table: %w", err)
	}
	return &File{h.Key, h.Seed, string(head[:h.Repository]), index, keys, entries}, nil
}

// Whole is the size of a table that is finished; 0: there is none.
func Whole(f *os.File) int64 {
	if f == nil {
		return 0
	}
	st, err := f.Stat()
	if err == nil {
		_, err = readHeader(io.NewSectionReader(f, 0, headerSize))
	}
	if err != nil {
		return 0
	}
	return st.Size()
}

// readHeader answers NotFound for a table that is not finished.
func readHeader(r io.Reader) (h header, err error) {
	if err := binary.Read(r, binary.LittleEndian, &h); err != nil || h.Magic != magic || h.Version != version.Table {
		return h, fmt.Errorf("page table: unfinished, or of another version: %w", errdefs.ErrNotFound)
	}
	return h, nil
}

// PackKey says by which key a pack is sealed.
type PackKey struct {
	Sealed uint8
	Secret [32]byte
}

// PackKeySize is that of one in a file.
const PackKeySize = 33

// AppendKeys appends those of packs; a key that is nil is of a pack that is not sealed.
func AppendKeys(b []byte, keys []*seal.Key) []byte {
	for _, k := range keys {
		var p PackKey
		if k != nil {
			p = PackKey{Sealed: 1, Secret: k.Secret()}
		}
		b = append(append(b, p.Sealed), p.Secret[:]...)
	}
	return b
}
