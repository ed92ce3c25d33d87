package restore

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/errno"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
)

// decoder is what one core does.
type decoder struct {
	f       *filler
	coder   format.Coder
	hash    pagetable.Hasher
	arena   []byte // the pages of a chunk
	pieces  []piece
	iovs    [][]byte
	entries []byte
}

// piece is pages of a chunk and where they belong.
type piece struct {
	space uint32
	page  uint64
	data  []byte
}

// chunk writes the pages of frames that have arrived. Those that are not what the index
// says are fetched once more.
func (d *decoder) chunk(ctx context.Context, c chunk) error {
	d.coder.Key = d.f.src.Keys[c.number]
	err := d.frames(c.first, c.end, c.data)
	if errdefs.IsDataLoss(err) {
		data, e := c.verified(ctx)
		if e != nil {
			return e
		}
		err = d.frames(c.first, c.end, data)
	}
	if err == nil {
		err = d.write()
	}
	if err != nil {
		return err
	}
	if d.f.post != nil {
		d.f.post.put(c.first, c.end)
	} else {
		d.f.notify(Progress{Step: "fill", Done: d.f.done.Load(), Total: d.f.total})
	}
	if d.f.table == nil {
		return nil
	}
	return d.f.tableError(d.f.table.Append(d.entries))
}

// frames verifies and decodes frames, and collects what is to be written.
func (d *decoder) frames(first, end int, stored []byte) error {
	d.pieces, d.entries = d.pieces[:0], d.entries[:0]
	arena := d.arena
	for i := first; i < end; i++ {
		uses := d.f.plan.uses(i)
		if len(uses) == 0 {
			continue
		}
		fr := &d.f.src.Index.Frames[i]
		raw, err := d.coder.DecodeTo(arena, fr, stored[fr.Offset:fr.Offset+fr.Stored])
		if err != nil {
			return err
		}
		arena = arena[len(raw):]
		for _, u := range uses {
			if !d.wants(i, u.space) { // the table alone wants its pages
				continue
			}
			r := d.f.src.Index.Spaces[u.space].Runs[u.run]
			d.pieces = append(d.pieces,
				piece{u.space, r.Page, raw[int(r.Slot)*format.PageSize : int(r.Slot+r.Count)*format.PageSize]})
		}
		if d.f.table != nil {
			d.remember(uint32(i), uses, raw)
		}
	}
	return nil
}

// wants reports whether the pages of a frame are to be written into a space.
func (d *decoder) wants(frame int, space uint32) bool {
	if d.f.post != nil {
		return int(space) == d.f.post.space && !d.f.post.here[frame].Load()
	}
	return d.f.files[space] != nil
}

// write writes pieces that lie side by side in one call.
func (d *decoder) write() error {
	if d.f.post != nil {
		return d.f.post.pieces(d.pieces)
	}
	slices.SortFunc(d.pieces, func(a, b piece) int {
		return cmp.Or(cmp.Compare(a.space, b.space), cmp.Compare(a.page, b.page))
	})
	for rest := d.pieces; len(rest) > 0; {
		d.iovs = d.iovs[:0]
		space, first, next := rest[0].space, rest[0].page, rest[0].page
		for len(rest) > 0 && rest[0].space == space && rest[0].page == next {
			d.iovs = append(d.iovs, rest[0].data)
			next += uint64(len(rest[0].data) / format.PageSize)
			rest = rest[1:]
		}
		if err := d.writeRun(space, first*format.PageSize, next*format.PageSize); err != nil {
			return err
		}
	}
	return nil
}

// writeRun writes what iovs hold. The last page of a disk may be partial.
func (d *decoder) writeRun(space uint32, offset, end uint64) error {
	sp := &d.f.src.Index.Spaces[space]
	d.f.done.Add(end - offset)
	if end > sp.Size {
		last := &d.iovs[len(d.iovs)-1]
		*last = (*last)[:uint64(len(*last))-(end-sp.Size)]
		end = sp.Size
	}
	if len(d.iovs) > 1 {
		// What is short, or fails, is told by the plain writes.
		n, err := unix.Pwritev(int(d.f.files[space].Fd()), d.iovs, int64(offset))
		if err == nil && uint64(n) == end-offset {
			return nil
		}
	}
	for _, data := range d.iovs {
		if _, err := d.f.files[space].WriteAt(data, int64(offset)); err != nil {
			return errno.Classed(fmt.Errorf("write %s: %w", sp.Name, err))
		}
		offset += uint64(len(data))
	}
	return nil
}

// remember adds each page in use once, however often it is used.
func (d *decoder) remember(frame uint32, uses []use, raw []byte) {
	var live [format.FramePages]bool
	for _, u := range uses {
		r := d.f.src.Index.Spaces[u.space].Runs[u.run]
		for slot := r.Slot; slot < r.Slot+r.Count; slot++ {
			live[slot] = true
		}
	}
	for slot, ok := range live {
		if ok {
			page := raw[slot*format.PageSize : (slot+1)*format.PageSize]
			d.entries = d.f.table.Entry(d.hash, page, frame, uint32(slot)).Append(d.entries)
		}
	}
}
