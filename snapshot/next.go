package snapshot

import (
	"math/bits"
	"os"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/seal"
)

// nextTable makes the table of the snapshot that is being taken, of a VM that goes on: the one after it needs to
// push only what is new since. Pages of the parent keep their proofs, so its key stays; others are hashed when
// their frame is encoded, after the pause.
type nextTable struct {
	file *os.File
	key  [32]byte
	seed uint64
}

func newNextTable(f *os.File, tables []*Table) *nextTable {
	if f == nil {
		return nil
	}
	n := &nextTable{file: f}
	if len(tables) > 0 {
		n.key, n.seed = tables[0].key, tables[0].seed
		return n
	}
	n.key, n.seed = pagetable.NewKey(), pagetable.NewSeed()
	return n
}

// prove notes what the pages of a frame are; h has the key of n.
func (n *nextTable) prove(f *frame, h pagetable.Hasher, raw []byte) {
	if n == nil {
		return
	}
	f.proofs = make([]pagetable.Entry, 0, len(raw)/format.PageSize)
	for at := 0; at < len(raw); at += format.PageSize {
		page := raw[at : at+format.PageSize]
		f.proofs = append(f.proofs, pagetable.NewEntry(page, n.seed, h))
	}
}

// try is write, and says why there is no table: without one the next snapshot pushes more,
// and no more than that. What there is of it gives its room back. It stays an unfinished one,
// so that none of before is taken for it.
func (n *nextTable) try(c *capture, repository string, index []byte, packs []*pack) string {
	err := n.write(c, repository, index, packs)
	if err == nil {
		return ""
	}
	_ = n.file.Truncate(0)
	return err.Error()
}

// write is called when frames are numbered, with the plain index.
func (n *nextTable) write(c *capture, repository string, index []byte, packs []*pack) error {
	keys := make([]*seal.Key, len(packs))
	for i, p := range packs {
		keys[i] = p.key
	}
	w, err := pagetable.NewWriter(n.file, repository, index, keys)
	if err != nil {
		return err
	}
	w.Take(n.key, n.seed)
	var b []byte
	flush := func(most int) error {
		if len(b) <= most {
			return nil
		}
		err := w.Append(b)
		b = b[:0]
		return err
	}
	for _, f := range c.packer.frames {
		for slots := f.slots; slots != 0; slots &= slots - 1 {
			slot := bits.TrailingZeros16(slots)
			e := f.proofs[slot]
			e.Frame, e.Slot = f.number, uint32(slot)
			b = e.Append(b)
		}
		if err := flush(1 << 20); err != nil {
			return err
		}
	}
	for _, t := range c.push.tables() {
		if t.key != n.key {
			continue // of a golden snapshot in addition to a parent's: the next push finds it there again
		}
		for _, e := range t.entries {
			if f := t.frame(e.Frame); f.slots&(1<<e.Slot) != 0 {
				e.Frame = f.number
				b = e.Append(b)
			}
			if err := flush(1 << 20); err != nil {
				return err
			}
		}
	}
	if err := flush(0); err != nil {
		return err
	}
	return w.Close()
}
