package snapshot

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/seal"
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
	frames     []frame
	spaces     []format.Space
	same       []*frame // by frame: that of another table, for the same bytes; nil: none is shared
	entries    []entry
	sums       sums // entries by their sum
	own        bool // packs are where this push stores, or lost
}

// entry is one page. Its sum finds it, its keyed hash proves it. One without a hash is known at
// its own place alone.
type entry struct {
	Sum   uint64
	More  uint64 // of the sum, for the same page of the same VM
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

// packKey says by which key a pack is sealed. A table has them behind its index.
type packKey struct {
	Sealed uint8
	Secret [32]byte
}

const (
	tableVersion = version.Table
	packKeySize  = 33
	tableHeaderN = 64
	entrySize    = 40
	maxEntries   = 1 << 30
)

var tableMagic = [8]byte{'G', 'O', 'D', 'W', 'I', 'T', 'P', 'T'}

// OpenTable reads a table. It is NotFound if the restore did not finish it.
func OpenTable(f *os.File) (*Table, error) {
	size, err := fileSize(f)
	if err != nil {
		return nil, fmt.Errorf("page table: %w", err)
	}
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
	keys := make([]packKey, len(index.Packs))
	rest := uint64(size) - tableHeaderN - uint64(len(head))
	if err := binary.Read(r, binary.LittleEndian, keys); err != nil {
		return nil, fmt.Errorf("page table: keys: %w: %w", err, errdefs.ErrDataLoss)
	}
	rest -= packKeySize * uint64(len(keys))
	if h.Entries > maxEntries || rest != entrySize*h.Entries {
		return nil, fmt.Errorf("page table: %d bytes for %d entries: %w", size, h.Entries, errdefs.ErrDataLoss)
	}
	entries := make([]entry, h.Entries)
	if err := readEntries(r, entries); err != nil {
		return nil, fmt.Errorf("page table: %w", err)
	}
	t := &Table{key: h.Key, seed: h.Seed, repository: string(head[:h.Repository]), entries: entries}
	return t, t.build(index, keys)
}

// wholeTable is the size of a table that is finished and worth sending; 0: there is none.
func wholeTable(f *os.File) int64 {
	if f == nil {
		return 0
	}
	size, err := fileSize(f)
	if err == nil {
		_, err = readHeader(io.NewSectionReader(f, 0, tableHeaderN))
	}
	if err != nil {
		return 0
	}
	return size
}

// readHeader answers NotFound for a table that is not finished.
func readHeader(r io.Reader) (h tableHeader, err error) {
	if err := binary.Read(r, binary.LittleEndian, &h); err != nil || h.Magic != tableMagic || h.Version != tableVersion {
		return h, fmt.Errorf("page table: unfinished, or of another version: %w", errdefs.ErrNotFound)
	}
	return h, nil
}

func readEntries(r io.Reader, entries []entry) error {
	var b [entrySize]byte
	for i := range entries {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return err
		}
		entries[i] = entry{
			Sum: binary.LittleEndian.Uint64(b[:]), More: binary.LittleEndian.Uint64(b[8:]), Hash: [16]byte(b[16:32]),
			Frame: binary.LittleEndian.Uint32(b[32:]), Slot: binary.LittleEndian.Uint32(b[36:]),
		}
	}
	return nil
}

func (t *Table) build(x *format.Index, keys []packKey) error {
	known := map[[32]byte]*seal.Key{} // packs of one push have one key
	for i, p := range x.Packs {
		t.packs = append(t.packs, &pack{Pack: p})
		if k := keys[i]; k.Sealed != 0 {
			if known[k.Secret] == nil {
				known[k.Secret] = seal.FromSecret(k.Secret)
			}
			t.packs[i].key = known[k.Secret]
		}
	}
	t.spaces = x.Spaces
	t.frames = make([]frame, len(x.Frames))
	live := make([]uint64, len(x.Packs))
	for i, f := range x.Frames {
		t.frames[i] = frame{Frame: f, pack: t.packs[f.Pack]}
	}
	t.sums = newSums(len(t.entries) - unprovedOf(t.entries))
	for i, e := range t.entries {
		if int(e.Frame) >= len(x.Frames) || e.Slot >= uint32(x.Frames[e.Frame].Pages) {
			return fmt.Errorf("page table: entry %d: frame %d, slot %d: %w", i, e.Frame, e.Slot, errdefs.ErrDataLoss)
		}
		if e.Hash != unproved {
			t.sums.add(t.entries, uint32(i))
		}
		live[x.Frames[e.Frame].Pack] += uint64(x.Frames[e.Frame].Stored) / uint64(x.Frames[e.Frame].Pages)
	}
	for i := range x.Packs {
		// Of a pack that is hardly used a restore would still fetch the whole.
		if live[i]*minLive < x.Packs[i].Size {
			t.drop(i)
		}
	}
	return nil
}

var unproved [16]byte

func unprovedOf(entries []entry) (n int) {
	for i := range entries {
		if entries[i].Hash == unproved {
			n++
		}
	}
	return n
}

// minLive: a pack is inherited while at least one part in minLive of it is in use.
const minLive = 5

func (t *Table) drop(pack int) { t.packs[pack].dropped = true }

// dropSealed gives up the packs that are sealed where the push is not, and the other way
// round: with sealing on no plain page is left in what a snapshot needs, and without it
// there is no place for keys.
func (t *Table) dropSealed(sealed bool) {
	for i, p := range t.packs {
		if (p.key != nil) != sealed {
			t.drop(i)
		}
	}
}

// Repository is where its packs are.
func (t *Table) Repository() string { return t.repository }

// Fits reports whether a push that seals, or does not, can refer to the table's pages.
func (t *Table) Fits(sealed bool) bool {
	return !slices.ContainsFunc(t.packs, func(p *pack) bool { return (p.key != nil) != sealed })
}

// share makes packs and frames that both tables have the same ones: an index names each
// once.
func (t *Table) share(with *Table) {
	type place struct {
		pack   *pack
		offset uint32
	}
	packs, frames := map[[32]byte]*pack{}, map[place]*frame{}
	for _, p := range with.packs {
		packs[p.SHA256] = p
	}
	for i := range with.frames {
		f := &with.frames[i]
		frames[place{f.pack, f.Offset}] = f
	}
	own := map[*pack]*pack{}
	for i, p := range t.packs {
		if q := packs[p.SHA256]; q != nil {
			t.packs[i], own[p] = q, q
		}
	}
	t.same = make([]*frame, len(t.frames))
	for i := range t.frames {
		f := &t.frames[i]
		if q := own[f.pack]; q != nil {
			f.pack = q
			t.same[i] = frames[place{q, f.Offset}]
		}
	}
}

// frame returns the one that stands for the table's frame of that number.
func (t *Table) frame(i uint32) *frame {
	if t.same != nil && t.same[i] != nil {
		return t.same[i]
	}
	return &t.frames[i]
}

// find returns where the parent has a page of that content, or nil.
func (t *Table) find(h *hasher, sum uint64, data []byte) (*frame, uint8) {
	e := t.sums.find(t.entries, sum)
	if e == nil {
		return nil, 0
	}
	f := t.frame(e.Frame)
	if f.pack.dropped || h.sum(data) != e.Hash {
		return nil, 0
	}
	return f, uint8(e.Slot)
}

// tableWriter makes a table while pages pass.
type tableWriter struct {
	f      *os.File
	header tableHeader

	mu  sync.Mutex
	off int64
}

func newTableWriter(f *os.File, repository string, index []byte, keys []*seal.Key) (*tableWriter, error) {
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
	return w, w.append(appendKeys(append([]byte(repository), index...), keys), 0)
}

func appendKeys(b []byte, keys []*seal.Key) []byte {
	for _, k := range keys {
		var p packKey
		if k != nil {
			p = packKey{Sealed: 1, Secret: k.Secret()}
		}
		b = append(append(b, p.Sealed), p.Secret[:]...)
	}
	return b
}

func (w *tableWriter) append(data []byte, entries int) error {
	w.mu.Lock()
	at := w.off
	w.off += int64(len(data))
	w.header.Entries += uint64(entries)
	w.mu.Unlock()
	if _, err := w.f.WriteAt(data, at); err != nil {
		return fileFull("page table", err)
	}
	return nil
}

// entry appends the entry of a page to b.
func (w *tableWriter) entry(b []byte, h hasher, page []byte, frame uint32, slot int) []byte {
	return appendEntry(b, proof{xxh3.Hash128Seed(page, w.header.Seed), h.sum(page)}, frame, uint32(slot))
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
