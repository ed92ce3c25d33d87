package snapshot

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"time"

	"github.com/zeebo/blake3"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
)

// readFinished answers a table of the packs that are told of, and where the last whole
// record ends; nil if there is nothing of use. The table knows a page at its own place
// alone: none of its entries is proved. Whether the packs are still there the caller asks.
func readFinished(f *os.File, about [32]byte, spaces []SpaceInfo, now time.Time) (*Table, int64) {
	data, err := io.ReadAll(io.NewSectionReader(f, 0, mostFinished+1))
	if err != nil || len(data) > mostFinished {
		return nil, 0
	}
	return parseFinished(data, about, spaces, now)
}

func parseFinished(data []byte, about [32]byte, spaces []SpaceInfo, now time.Time) (*Table, int64) {
	var h finishedHeader
	if len(data) < finishedHeaderN || blake3.Sum256(data[:64]) != [32]byte(data[64:96]) {
		return nil, 0
	}
	if binary.Read(bytes.NewReader(data), binary.LittleEndian, &h) != nil || h.Magic != finishedMagic ||
		h.Version != version.Table || h.About != about {
		return nil, 0
	}
	if age := now.Sub(time.Unix(0, h.Created)); age < 0 || age > finishedFor {
		return nil, 0
	}
	l := &records{spaces: spaces}
	at := finishedHeaderN
	for at+recordHeadN <= len(data) {
		n, body := int64(binary.LittleEndian.Uint32(data[at:])), data[at+recordHeadN:]
		if n > int64(len(body)) || blake3.Sum256(body[:n]) != [32]byte(data[at+4:at+recordHeadN]) || !l.read(body[:n]) {
			break // its writer was killed: nothing stands after it
		}
		at += recordHeadN + int(n)
	}
	t := &Table{seed: h.Seed, own: true, entries: l.entries}
	l.index.Spaces = l.spread()
	if len(l.index.Packs) == 0 || l.index.Validate() != nil || t.build(&l.index, l.keys) != nil {
		return nil, 0
	}
	for i := range t.frames {
		t.frames[i].again = true
	}
	return t, int64(at)
}

// records collects what they tell.
type records struct {
	spaces  []SpaceInfo
	index   format.Index
	keys    []pagetable.PackKey
	entries []pagetable.Entry
	places  []met
}

// met is a page of a space, and its place in the frames.
type met struct {
	space uint16
	page  uint64
	frame uint32
	slot  uint8
}

// read takes one pack, or nothing.
func (l *records) read(b []byte) bool {
	if len(b) < recordPackN || len(l.index.Packs) == format.MaxPacks {
		return false
	}
	p := format.Pack{SHA256: [32]byte(b), Size: binary.LittleEndian.Uint64(b[32:])}
	key := pagetable.PackKey{Sealed: b[40], Secret: [32]byte(b[41:73])}
	frames := binary.LittleEndian.Uint32(b[73:])
	b = b[recordPackN:]
	before, known, seen := len(l.index.Frames), len(l.entries), len(l.places)
	for range frames {
		if len(b) < recordFrameN || b[8] > format.FramePages || len(b) < recordFrameN+int(b[8])*recordPageN {
			break
		}
		f := format.Frame{
			Pack: uint32(len(l.index.Packs)), Offset: binary.LittleEndian.Uint32(b), Stored: binary.LittleEndian.Uint32(b[4:]),
			Pages: b[8], Codec: format.Codec(b[9]), BLAKE3: [32]byte(b[10:42]),
		}
		b = b[recordFrameN:]
		for slot := range f.Pages {
			e := pagetable.Entry{Sum: binary.LittleEndian.Uint64(b), More: binary.LittleEndian.Uint64(b[8:]),
				Frame: uint32(len(l.index.Frames)), Slot: uint32(slot)}
			l.entries = append(l.entries, e)
			l.places = append(l.places, met{binary.LittleEndian.Uint16(b[16:]), binary.LittleEndian.Uint64(b[18:]),
				e.Frame, slot})
			b = b[recordPageN:]
		}
		l.index.Frames = append(l.index.Frames, f)
	}
	if len(l.index.Frames)-before != int(frames) || len(b) > 0 || slices.ContainsFunc(l.places[seen:], l.outside) {
		l.index.Frames, l.entries, l.places = l.index.Frames[:before], l.entries[:known], l.places[:seen]
		return false
	}
	l.index.Packs, l.keys = append(l.index.Packs, p), append(l.keys, key)
	return true
}

func (l *records) outside(m met) bool {
	return int(m.space) >= len(l.spaces) || m.page >= uint64(l.spaces[m.space].Size+format.PageSize-1)/format.PageSize
}

// spread says by space where each page is. Of a page that was stored twice the later one counts.
func (l *records) spread() (spaces []format.Space) {
	slices.SortStableFunc(l.places, func(a, b met) int {
		return cmp.Or(cmp.Compare(a.space, b.space), cmp.Compare(a.page, b.page))
	})
	for _, s := range l.spaces {
		spaces = append(spaces, format.Space{Name: s.Name, Size: uint64(s.Size)})
	}
	for i, m := range l.places {
		if i+1 < len(l.places) && l.places[i+1].space == m.space && l.places[i+1].page == m.page {
			continue
		}
		runs := &spaces[m.space].Runs
		*runs = append(*runs, format.Run{Page: m.page, Frame: m.frame, Slot: m.slot, Count: 1})
	}
	return spaces
}
