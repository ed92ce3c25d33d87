package snapshot

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/zeebo/blake3"
	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/seal"
)

// finished keeps for the next push of a VM what this one has of it in the store: each pack
// that was taken, and whence the pages in it are. A push that fails leaves a file that the
// one after it reads (finished_read.go), and goes on with. It is written as packs leave, so
// that it is there whatever ends the push; a record that is not whole is none. It is no
// part of the format, for its owner only, and what cannot be written is not kept.
type finished struct {
	file  *os.File
	about [32]byte

	mu   sync.Mutex
	off  int64 // after the last record; 0: there is no header yet
	full bool  // or it cannot be written
}

// Bounds of the file: a page costs 26 bytes in it, and a registry that collects blobs
// without a manifest does it after an hour or two.
const (
	mostFinished    = 32 << 20
	finishedFor     = time.Hour
	finishedHeaderN = 96
	recordHeadN     = 36 // bytes and BLAKE3 of what follows
	recordPackN     = 32 + 8 + pagetable.PackKeySize + 4
	recordFrameN    = 42
	recordPageN     = 26
)

var finishedMagic = [8]byte{'G', 'O', 'D', 'W', 'I', 'T', 'F', 'P'}

// finishedHeader is followed by its BLAKE3.
type finishedHeader struct {
	Magic   [8]byte
	Version uint64 // that of page tables
	Seed    uint64 // of the sums
	Created int64  // ns
	About   [32]byte
}

// place is where a page was when it was stored, and what.
type place struct {
	sum  xxh3.Uint128
	area *precopy.Area
	page uint64
}

// aboutFinished names what packs are good for: those of another repository, or of a VM of
// another size, are not looked at.
func (p *push) aboutFinished() ([32]byte, error) {
	data, err := json.Marshal(struct {
		Repository, UID string
		Spaces          []SpaceInfo
		Sealed          bool
	}{p.o.Repository, p.o.Ref.UID, p.config.Spaces, p.key != nil})
	return sha256.Sum256(data), err
}

// goOn reads what a push before this one has finished. Whatever is wrong with it costs
// bytes, and no more.
func (p *push) goOn() {
	if p.o.Finished == nil || p.o.Make != nil {
		return
	}
	about, err := p.aboutFinished()
	if err != nil {
		return
	}
	p.finished = &finished{file: p.o.Finished, about: about}
	t, end := readFinished(p.o.Finished, about, p.config.Spaces, time.Now())
	if t == nil {
		return
	}
	if p.o.Parent != nil {
		if t.seed != p.o.Parent.seed {
			return // the sums say no more than those of its table
		}
		t.key = p.o.Parent.key
	} else {
		_, _ = rand.Read(t.key[:]) // never fails
	}
	p.again, p.finished.off = t, end
}

// dropKnown gives up those packs that another table has: an index names each once.
func (t *Table) dropKnown(tables ...*Table) {
	known := map[[32]byte]bool{}
	for _, o := range tables {
		if o != nil && o != t {
			for _, p := range o.packs {
				known[p.SHA256] = true
			}
		}
	}
	for i := len(t.packs) - 1; i >= 0; i-- { // of two the later one
		if known[t.packs[i].SHA256] {
			t.drop(i)
		}
		known[t.packs[i].SHA256] = true
	}
}

// begin makes the file one of this push. Sums of its pages are by that seed.
func (l *finished) begin(seed uint64) {
	if l == nil {
		return
	}
	if l.off > 0 {
		l.full = l.file.Truncate(l.off) != nil
		return
	}
	h := finishedHeader{finishedMagic, version.Table, seed, time.Now().UnixNano(), l.about}
	b, err := binary.Append(nil, binary.LittleEndian, h)
	if err == nil {
		err = l.file.Truncate(0)
	}
	sum := blake3.Sum256(b)
	l.full = err != nil || !l.write(append(b, sum[:]...))
}

// write appends; l.mu is held, or no other goroutine has l yet.
func (l *finished) write(b []byte) bool {
	if l.off+int64(len(b)) > mostFinished {
		return false
	}
	if _, err := l.file.WriteAt(b, l.off); err != nil {
		return false
	}
	l.off += int64(len(b))
	return true
}

// add notes a pack that the store has.
func (l *finished) add(p *pack, frames []*frame) {
	if l == nil {
		return
	}
	b := make([]byte, recordHeadN, recordHeadN+recordPackN+len(frames)*(recordFrameN+format.FramePages*recordPageN))
	b = append(b, p.SHA256[:]...)
	b = binary.LittleEndian.AppendUint64(b, p.Size)
	b = pagetable.AppendKeys(b, []*seal.Key{p.key})
	b = binary.LittleEndian.AppendUint32(b, uint32(len(frames)))
	for _, f := range frames {
		b = binary.LittleEndian.AppendUint32(b, f.Offset)
		b = binary.LittleEndian.AppendUint32(b, f.Stored)
		b = append(append(b, f.Pages, byte(f.Codec)), f.BLAKE3[:]...)
		for _, at := range f.places {
			b = binary.LittleEndian.AppendUint64(b, at.sum.Lo)
			b = binary.LittleEndian.AppendUint64(b, at.sum.Hi)
			b = binary.LittleEndian.AppendUint16(b, uint16(at.area.Number))
			b = binary.LittleEndian.AppendUint64(b, at.page)
		}
		f.places = nil
	}
	sum := blake3.Sum256(b[recordHeadN:])
	binary.LittleEndian.PutUint32(b, uint32(len(b)-recordHeadN))
	copy(b[4:], sum[:])
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full = l.full || !l.write(b)
}

// met notes where the page lies that the frame under way has got.
func (l *finished) met(f *frame, at place) {
	if l != nil {
		f.places = append(f.places, at)
	}
}
