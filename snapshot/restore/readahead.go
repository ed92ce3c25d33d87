package restore

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// firstWindow is how many frames the first read of a pack brings to either side: a MiB of pages.
const firstWindow = 16

// window is what is read of a pack for a page that is waited for. The more often its pages are
// wanted, the more of the pack is read at once, on both sides of the page: a kernel gives memory
// out from above as well. What a guest touches as it wakes lies close together, and each read
// costs a round trip that it waits for.
type window struct {
	frames     int // of the next read, to either side
	first, end int // of the last one
}

// readAhead says from where up to where to read for a frame that is waited for. One that is on its
// way already is asked for alone: what is next to it is not read twice. The caller holds l.mu.
func (l *postcopy) readAhead(frame int) (first, end int) {
	number := int(l.f.src.Index.Frames[frame].Pack)
	w := l.windows[number]
	if w == nil {
		w = &window{frames: firstWindow}
		l.windows[number] = w
	}
	if frame >= w.first && frame < w.end {
		return frame, frame + 1
	}
	start, last := l.f.plan.frames(number)
	comes := func(i int) bool { return l.here[i].Load() || i >= w.first && i < w.end }
	for end = frame + 1; end < min(last, frame+w.frames) && !comes(end); end++ {
	}
	for first = frame; first > max(start, frame-w.frames) && !comes(first-1); first-- {
	}
	w.first, w.end, w.frames = first, end, min(2*w.frames, last-start)
	return first, end
}

// before brings the frames before one that was waited for. They are not waited for themselves.
// So they are tried once, and not where a store would send the pack from its begin on.
func (l *postcopy) before(d *decoder, first, frame int) {
	if first = l.lacking(first, frame); first < frame {
		_ = l.frames(d, first, frame, l.kept, l.keptPart, l.ranged)
	}
}

// lacking is where the frames in use begin that are missing right before one.
func (l *postcopy) lacking(first, frame int) int {
	from := frame
	for from > first && !l.here[from-1].Load() {
		from--
	}
	for from < frame && len(l.f.plan.uses(from)) == 0 {
		from++
	}
	return from
}

// opener opens n bytes of a pack from an offset on.
type opener func(pack int, offset, n int64) (io.ReadCloser, error)

// frames brings some of a pack. The first one comes as soon as its bytes are here, while those
// of the others are still under way. What is open to try is tried one after the other.
func (l *postcopy) frames(d *decoder, first, end int, open ...opener) error {
	last := &l.f.src.Index.Frames[end-1]
	from := int64(l.f.src.Index.Frames[first].Offset)
	var err error
	for _, open := range open {
		var in io.ReadCloser
		if in, err = open(int(last.Pack), from, int64(last.Offset)+int64(last.Stored)-from); err != nil {
			continue
		}
		if err = d.stream(in, first, end); errdefs.IsDataLoss(err) {
			store.Reject(in) // the next try asks another host
		}
		in.Close()
		if err == nil || errors.Is(err, ErrGone) {
			return err
		}
	}
	return err
}

// stream brings frames as they come.
func (d *decoder) stream(in io.Reader, first, end int) error {
	var stored []byte
	pack, at := d.f.src.Packs[d.f.src.Index.Frames[first].Pack], uint64(d.f.src.Index.Frames[first].Offset)
	for i := first; i < end; i++ {
		if i > first && (d.f.post.here[i].Load() || len(d.f.plan.uses(i)) == 0) {
			continue
		}
		fr := &d.f.src.Index.Frames[i]
		if err := skip(in, int64(uint64(fr.Offset)-at)); err != nil {
			return partError(pack, err)
		}
		stored = slices.Grow(stored[:0], int(fr.Stored))[:fr.Stored]
		if _, err := io.ReadFull(in, stored); err != nil {
			return partError(pack, err)
		}
		if err := d.deliver(i, stored); err != nil {
			return err
		}
		at = uint64(fr.Offset) + uint64(fr.Stored)
	}
	return nil
}

// kept opens a part of a pack that the node keeps.
func (l *postcopy) kept(pack int, offset, _ int64) (io.ReadCloser, error) {
	return l.f.src.keptAs(pack, "", offset)
}

// keptPart opens it in what the node keeps of a pack of which it has read parts only. Where these
// are others, there are zeros.
func (l *postcopy) keptPart(pack int, offset, _ int64) (io.ReadCloser, error) {
	return l.f.src.keptAs(pack, store.KeptParts, offset)
}

func (s Source) keptAs(pack int, prefix string, offset int64) (io.ReadCloser, error) {
	d := s.Packs[pack]
	in, size, ok := store.KeeperOf(s.Store).Open(prefix + store.KeptName(store.Blob(d.Digest)))
	if !ok {
		return nil, fmt.Errorf("pack %s is not kept: %w", d.Digest, errdefs.ErrNotFound)
	}
	if size != d.Size {
		in.Close()
		return nil, fmt.Errorf("pack %s: %d bytes are kept: %w", d.Digest, size, errdefs.ErrDataLoss)
	}
	return from(d, in, offset)
}

// keeps reports whether the node has a pack, or the parts of it that this snapshot needs.
func (s Source) keeps(pack int, p *plan) bool {
	if in, err := s.keptAs(pack, "", 0); err == nil {
		in.Close()
		return true
	}
	in, err := s.keptAs(pack, store.KeptParts, 0)
	if err != nil {
		return false
	}
	defer in.Close()
	first, end := p.frames(pack)
	var begin [format.PageSize]byte
	at := int64(0)
	for i := first; i < end; i++ {
		fr := &s.Index.Frames[i]
		if len(p.uses(i)) == 0 {
			continue
		}
		n := min(len(begin), int(fr.Stored))
		clear(begin[n:])
		if skip(in, int64(fr.Offset)-at) != nil {
			return false
		}
		// No frame begins with a page of zeros: such a page is not stored.
		if _, err := io.ReadFull(in, begin[:n]); err != nil || format.IsZero(begin[:]) {
			return false
		}
		at = int64(fr.Offset) + int64(n)
	}
	return true
}

// part opens it in the store, the pack from its begin on where that knows no parts.
func (l *postcopy) part(pack int, offset, n int64) (io.ReadCloser, error) {
	in, err := l.ranged(pack, offset, n)
	if !errdefs.IsNotImplemented(err) {
		return in, err
	}
	d := l.f.src.Packs[pack]
	in, err = l.f.src.Store.Get(l.ctx, store.Blob(d.Digest))
	if err != nil {
		return nil, store.Lost("pack", d, err)
	}
	return from(d, in, offset)
}

// ranged opens it where the store knows parts.
func (l *postcopy) ranged(pack int, offset, n int64) (io.ReadCloser, error) {
	d := l.f.src.Packs[pack]
	r, ok := l.f.src.Store.(store.Ranger)
	if !ok {
		return nil, fmt.Errorf("a part of pack %s: %w", d.Digest, errdefs.ErrNotImplemented)
	}
	in, err := r.GetRange(l.ctx, d.Digest, offset, n)
	if err != nil && !errdefs.IsNotImplemented(err) {
		err = store.Lost("pack", d, err)
	}
	return in, err
}

// from is the rest of a pack.
func from(pack v1.Descriptor, in io.ReadCloser, offset int64) (io.ReadCloser, error) {
	if err := skip(in, offset); err != nil {
		in.Close()
		return nil, partError(pack, err)
	}
	return in, nil
}

func skip(in io.Reader, n int64) (err error) {
	if s, ok := in.(io.Seeker); ok {
		_, err = s.Seek(n, io.SeekCurrent)
	} else {
		_, err = io.CopyN(io.Discard, in, n)
	}
	return err
}

// partError is what is said of bytes of a pack that did not come: those who want them try again.
func partError(pack v1.Descriptor, err error) error {
	return fmt.Errorf("read a part of pack %s: %w: %w", pack.Digest, err, errdefs.ErrUnavailable)
}
