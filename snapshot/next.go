package snapshot

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
	"os"

	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/seal"
)

// nextTable makes the table of the snapshot that is being taken, of a VM that goes on: the
// one after it needs to push only what is new since. Pages of the parent keep their proofs,
// so its key stays; others are hashed when their frame is encoded, behind the pause.
type nextTable struct {
	file *os.File
	key  [32]byte
	seed uint64
}

// proof is that of a page of a frame, by slot.
type proof struct {
	sum  xxh3.Uint128
	hash [16]byte
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
	_, _ = rand.Read(n.key[:]) // never fails
	var seed [8]byte
	_, _ = rand.Read(seed[:])
	n.seed = binary.LittleEndian.Uint64(seed[:])
	return n
}

// prove notes what the pages of a frame are; h has the key of n.
func (n *nextTable) prove(f *frame, h *hasher, raw []byte) {
	if n == nil {
		return
	}
	f.proofs = make([]proof, 0, len(raw)/format.PageSize)
	for at := 0; at < len(raw); at += format.PageSize {
		page := raw[at : at+format.PageSize]
		f.proofs = append(f.proofs, proof{xxh3.Hash128Seed(page, n.seed), h.sum(page)})
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
	w, err := newTableWriter(n.file, repository, index, keys)
	if err != nil {
		return err
	}
	w.header.Key, w.header.Seed = n.key, n.seed
	var b []byte
	flush := func(most int) error {
		if len(b) <= most {
			return nil
		}
		err := w.append(b, len(b)/entrySize)
		b = b[:0]
		return err
	}
	for _, f := range c.packer.frames {
		for slots := f.slots; slots != 0; slots &= slots - 1 {
			slot := bits.TrailingZeros16(slots)
			b = appendEntry(b, f.proofs[slot], f.number, uint32(slot))
		}
		if err := flush(1 << 20); err != nil {
			return err
		}
	}
	for _, t := range c.push.tables() {
		if t.key != n.key {
			continue // of a golden snapshot beside a parent's: the next push finds it there again
		}
		for _, e := range t.entries {
			if f := t.frame(e.Frame); f.slots&(1<<e.Slot) != 0 {
				b = appendEntry(b, proof{xxh3.Uint128{Lo: e.Sum, Hi: e.More}, e.Hash}, f.number, e.Slot)
			}
			if err := flush(1 << 20); err != nil {
				return err
			}
		}
	}
	if err := flush(0); err != nil {
		return err
	}
	return w.close()
}

func appendEntry(b []byte, p proof, frame, slot uint32) []byte {
	b = binary.LittleEndian.AppendUint64(b, p.sum.Lo)
	b = binary.LittleEndian.AppendUint64(b, p.sum.Hi)
	b = append(b, p.hash[:]...)
	b = binary.LittleEndian.AppendUint32(b, frame)
	return binary.LittleEndian.AppendUint32(b, slot)
}
