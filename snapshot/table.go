package snapshot

import (
	"fmt"
	"os"
	"slices"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
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
	entries    []pagetable.Entry
	sums       pagetable.Sums // entries by their sum
	own        bool           // packs are where this push stores, or lost
}

// OpenTable reads a table. It is NotFound if the restore did not finish it.
func OpenTable(f *os.File) (*Table, error) {
	if f == nil {
		return nil, invalid("page table", "no file")
	}
	file, err := pagetable.Read(f)
	if err != nil {
		return nil, err
	}
	t := &Table{key: file.Key, seed: file.Seed, repository: file.Repository, entries: file.Entries}
	return t, t.build(file.Index, file.Packs)
}

func (t *Table) build(x *format.Index, keys []pagetable.PackKey) error {
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
	t.sums = pagetable.NewSums(len(t.entries) - unprovedOf(t.entries))
	for i, e := range t.entries {
		if int(e.Frame) >= len(x.Frames) || e.Slot >= uint32(x.Frames[e.Frame].Pages) {
			return fmt.Errorf("page table: entry %d: frame %d, slot %d: %w", i, e.Frame, e.Slot, errdefs.ErrDataLoss)
		}
		if e.Proved() {
			t.sums.Add(t.entries, uint32(i))
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

func unprovedOf(entries []pagetable.Entry) (n int) {
	for i := range entries {
		if !entries[i].Proved() {
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
func (t *Table) find(h *pagetable.Hasher, sum uint64, data []byte) (*frame, uint8) {
	e := t.sums.Find(t.entries, sum)
	if e == nil {
		return nil, 0
	}
	f := t.frame(e.Frame)
	if f.pack.dropped || h.Sum(data) != e.Hash {
		return nil, 0
	}
	return f, uint8(e.Slot)
}
