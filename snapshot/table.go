package snapshot

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/zeebo/blake3"
	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// Table knows the pages of the snapshot that a VM was restored from, by content: what
// of them is still in the VM need not be pushed again. A restore writes it into a file
// of the node, for its owner only, because its key decides what counts as equal. It is
// no part of the format.
type Table struct {
	key        [32]byte
	seed       uint64
	repository string
	packs      []*pack
	dropped    []bool // by pack
	frames     []frame
	packOf     []uint32 // by frame
	entries    []entry
	find1      map[uint64]uint32 // first entry of a sum
}

// entry is one page. Its sum finds it, its keyed hash proves it.
type entry struct {
	Sum   uint64
	Hash  [16]byte
	Frame uint32
	Slot  uint32
}

// tableHeader is written last: a file without it is no table.
type tableHeader struct {
	Magic      [8]byte
	Version    uint16
	Repository uint16 // bytes
	Index      uint32 // bytes
	Entries    uint64
	Seed       uint64
	Key        [32]byte
}

const (
	tableVersion = version.Table
	tableHeaderN = 64
	entrySize    = 32
	maxEntries   = 1 << 30
)

var tableMagic = [8]byte{'G', 'O', 'D', 'W', 'I', 'T', 'P', 'T'}

// hasher is the keyed hash of one goroutine.
type hasher struct{ h *blake3.Hasher }

func newHasher(key [32]byte) hasher {
	h, err := blake3.NewKeyed(key[:])
	if err != nil {
		return hasher{} // only a key of another length is refused
	}
	return hasher{h}
}

func (h hasher) sum(data []byte) (sum [16]byte) {
	var full [32]byte
	h.h.Reset()
	_, _ = h.h.Write(data)
	h.h.Sum(full[:0])
	return [16]byte(full[:16])
}

// OpenTable reads a table. It is NotFound if the restore did not finish it.
func OpenTable(f *os.File) (*Table, error) {
	size, err := fileSize(f)
	if err != nil {
		return nil, fmt.Errorf("page table: %w", err)
	}
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, size), 1<<20)
	var h tableHeader
	if err := binary.Read(r, binary.LittleEndian, &h); err != nil || h.Magic != tableMagic || h.Version != tableVersion {
		return nil, fmt.Errorf("page table: unfinished, or of another version: %w", errdefs.ErrNotFound)
	}
	if h.Entries > maxEntries || uint64(size) != tableHeaderN+uint64(h.Repository)+uint64(h.Index)+entrySize*h.Entries {
		return nil, fmt.Errorf("page table: %d bytes for %d entries: %w", size, h.Entries, errdefs.ErrDataLoss)
	}
	head := make([]byte, int(h.Repository)+int(h.Index))
	entries := make([]entry, h.Entries)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("page table: %w", err)
	}
	if err := readEntries(r, entries); err != nil {
		return nil, fmt.Errorf("page table: %w", err)
	}
	index, err := format.Decode(head[h.Repository:])
	if err != nil {
		return nil, fmt.Errorf("page table: %w", err)
	}
	t := &Table{key: h.Key, seed: h.Seed, repository: string(head[:h.Repository]), entries: entries}
	return t, t.build(index)
}

func readEntries(r io.Reader, entries []entry) error {
	var b [entrySize]byte
	for i := range entries {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return err
		}
		entries[i] = entry{
			Sum: binary.LittleEndian.Uint64(b[:]), Hash: [16]byte(b[8:24]),
			Frame: binary.LittleEndian.Uint32(b[24:]), Slot: binary.LittleEndian.Uint32(b[28:]),
		}
	}
	return nil
}

func (t *Table) build(x *format.Index) error {
	for _, p := range x.Packs {
		t.packs = append(t.packs, &pack{Pack: p})
	}
	t.dropped = make([]bool, len(x.Packs))
	t.frames = make([]frame, len(x.Frames))
	t.packOf = make([]uint32, len(x.Frames))
	stored, live := make([]uint64, len(x.Packs)), make([]uint64, len(x.Packs))
	for i, f := range x.Frames {
		t.frames[i] = frame{Frame: f, pack: t.packs[f.Pack]}
		t.packOf[i] = f.Pack
		stored[f.Pack] += uint64(f.Stored)
	}
	t.find1 = make(map[uint64]uint32, len(t.entries))
	for i, e := range t.entries {
		if int(e.Frame) >= len(x.Frames) || e.Slot >= uint32(x.Frames[e.Frame].Pages) {
			return fmt.Errorf("page table: entry %d: frame %d, slot %d: %w", i, e.Frame, e.Slot, errdefs.ErrDataLoss)
		}
		if _, ok := t.find1[e.Sum]; !ok {
			t.find1[e.Sum] = uint32(i)
		}
		live[t.packOf[e.Frame]] += uint64(x.Frames[e.Frame].Stored) / uint64(x.Frames[e.Frame].Pages)
	}
	for i := range x.Packs {
		// Of a pack that is hardly used a restore would still fetch the whole.
		if live[i]*minLive < x.Packs[i].Size {
			t.drop(i)
		}
	}
	return nil
}

// minLive: a pack is inherited while at least one part in minLive of it is in use.
const minLive = 5

func (t *Table) drop(pack int) { t.dropped[pack] = true }

// find returns where the parent has a page of that content, or nil.
func (t *Table) find(h *hasher, sum uint64, data []byte) (*frame, uint8) {
	i, ok := t.find1[sum]
	if !ok {
		return nil, 0
	}
	e := &t.entries[i]
	if t.dropped[t.packOf[e.Frame]] || h.sum(data) != e.Hash {
		return nil, 0
	}
	return &t.frames[e.Frame], uint8(e.Slot)
}

func (t *Table) packBlobs() []v1.Descriptor {
	list := make([]v1.Descriptor, len(t.packs))
	for i, p := range t.packs {
		list[i] = packDescriptor(p.Pack)
	}
	return list
}

// mount asks the store for a pack of the parent's repository.
func (t *Table) mount(ctx context.Context, st store.Store, i int) bool {
	d := packDescriptor(t.packs[i].Pack)
	c := store.Content{Digest: d.Digest, Size: d.Size, From: t.repository, Open: func() (io.ReadCloser, error) {
		return nil, fmt.Errorf("pack %s is not here: %w", d.Digest, errdefs.ErrNotFound)
	}}
	return st.Put(ctx, store.Blob(d.Digest), c) == nil
}

// tableWriter makes a table while pages pass.
type tableWriter struct {
	f      *os.File
	header tableHeader

	mu  sync.Mutex
	off int64
}

func newTableWriter(f *os.File, repository string, index []byte) (*tableWriter, error) {
	if len(repository) > 1<<15 {
		return nil, invalid("repository", "%d bytes", len(repository))
	}
	if err := f.Truncate(0); err != nil {
		return nil, fmt.Errorf("page table: %w", err)
	}
	w := &tableWriter{f: f, header: tableHeader{
		Magic: tableMagic, Version: tableVersion, Repository: uint16(len(repository)), Index: uint32(len(index)),
	}}
	_, _ = rand.Read(w.header.Key[:]) // never fails
	var seed [8]byte
	_, _ = rand.Read(seed[:])
	w.header.Seed = binary.LittleEndian.Uint64(seed[:])
	w.off = tableHeaderN
	return w, w.append(append([]byte(repository), index...), 0)
}

func (w *tableWriter) append(data []byte, entries int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.f.WriteAt(data, w.off); err != nil {
		return fmt.Errorf("page table: %w", err)
	}
	w.off += int64(len(data))
	w.header.Entries += uint64(entries)
	return nil
}

// entry appends the entry of a page to b.
func (w *tableWriter) entry(b []byte, h hasher, page []byte, frame uint32, slot int) []byte {
	sum := h.sum(page)
	b = binary.LittleEndian.AppendUint64(b, xxh3.HashSeed(page, w.header.Seed))
	b = append(b, sum[:]...)
	b = binary.LittleEndian.AppendUint32(b, frame)
	return binary.LittleEndian.AppendUint32(b, uint32(slot))
}

func (w *tableWriter) close() error {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, w.header); err != nil {
		return fmt.Errorf("page table: %w", err)
	}
	if _, err := w.f.WriteAt(b.Bytes(), 0); err != nil {
		return fmt.Errorf("page table: %w", err)
	}
	return nil
}
