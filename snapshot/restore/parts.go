package restore

import (
	"context"
	"io"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// Bounds of reading a pack in parts: a gap that is shorter costs less than another
// request, and many requests cost more than the bytes between them.
const (
	maxGap   = 128 << 10
	maxSpans = 16
)

// span is a part of a pack.
type span struct{ offset, end int64 }

// pack gets the bytes of a pack, or at least those of the frames in use: of a pack that is
// mostly of older snapshots only those are fetched, where the store honours ranges. What
// the node keeps is not fetched; if it is damaged, who decodes it finds out.
func (f *filler) pack(ctx context.Context, b *body, chunks chan<- chunk) error {
	d := f.src.Packs[b.number]
	name := store.KeptName(store.Blob(d.Digest))
	for _, name := range []string{name, store.KeptParts + name} {
		if f.held(ctx, b, name, chunks) {
			return nil
		}
	}
	keeper := store.KeeperOf(f.src.Store)
	ranger, ok := f.src.Store.(store.Ranger)
	spans := f.spans(b.number)
	if ok && b.at == 0 && worthwhile(spans, d.Size) {
		err := f.ranges(ctx, ranger, d, spans, b.data)
		if err == nil {
			_, end := f.plan.frames(b.number)
			for b.next < end && err == nil {
				err = b.send(ctx, min(b.next+chunkFrames, end), chunks)
			}
			keeper.Keep(store.KeptParts+name, d.Size, parts(b.data, spans)...)
			return err
		}
		if ctx.Err() != nil {
			return err
		}
		// No ranges, a part that is gone: the whole pack tells.
	}
	err := f.whole(ctx, b, chunks)
	if err == nil {
		keeper.Keep(name, d.Size, store.Part{Data: b.data})
	}
	return err
}

// held gets a pack, or those parts of it that were of use before, from the node's disk.
func (f *filler) held(ctx context.Context, b *body, name string, chunks chan<- chunk) bool {
	in, size, ok := store.KeeperOf(f.src.Store).Open(name)
	if !ok {
		return false
	}
	defer in.Close()
	return size == int64(len(b.data)) && f.stream(ctx, b, in, chunks) == nil
}

func parts(data []byte, spans []span) (all []store.Part) {
	for _, s := range spans {
		all = append(all, store.Part{Offset: s.offset, Data: data[s.offset:s.end]})
	}
	return all
}

// spans are the frames in use, those that lie close together in one.
func (f *filler) spans(p int) (spans []span) {
	first, end := f.plan.frames(p)
	for i := first; i < end; i++ {
		if len(f.plan.uses(i)) == 0 {
			continue
		}
		spans = join(spans, &f.src.Index.Frames[i])
	}
	return spans
}

// Fetches is how many bytes of a pack are fetched for those of its frames, by offset, where the store
// honours ranges.
func Fetches(frames []*format.Frame, size uint64) uint64 {
	var spans []span
	for _, f := range frames {
		spans = join(spans, f)
	}
	if worthwhile(spans, int64(size)) {
		return uint64(length(spans))
	}
	return size
}

// join adds the place of a frame that comes after the others.
func join(spans []span, f *format.Frame) []span {
	s := span{int64(f.Offset), int64(f.Offset) + int64(f.Stored)}
	if n := len(spans); n > 0 && s.offset-spans[n-1].end <= maxGap {
		spans[n-1].end = s.end
		return spans
	}
	return append(spans, s)
}

func length(spans []span) (n int64) {
	for _, s := range spans {
		n += s.end - s.offset
	}
	return n
}

func worthwhile(spans []span, size int64) bool {
	n := length(spans)
	return len(spans) <= maxSpans && 2*n <= size && size-n >= maxGap
}

// ranges fills a buffer of the pack's size where its spans are.
func (f *filler) ranges(ctx context.Context, r store.Ranger, d v1.Descriptor, spans []span, data []byte) error {
	for _, s := range spans {
		body, err := r.GetRange(ctx, d.Digest, s.offset, s.end-s.offset)
		if err != nil {
			return err
		}
		_, err = io.ReadFull(body, data[s.offset:s.end])
		body.Close()
		if err != nil {
			return partError(d, err)
		}
	}
	return nil
}
