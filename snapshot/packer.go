package snapshot

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"sync"

	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// pack is one of this snapshot or of its parent.
type pack struct {
	format.Pack
	number int // in the index
	used   bool
}

// frame is one of this snapshot or of its parent. Its place and number are known at the
// end.
type frame struct {
	format.Frame
	pack   *pack
	number uint32
	used   bool
}

// packer joins frames to packs and sends each pack when it is full. The number of
// buffers bounds the memory: who fills packs faster than they leave waits here.
type packer struct {
	*push
	ctx     context.Context
	uploads *errgroup.Group
	free    chan []byte

	mu     sync.Mutex
	buf    []byte // nil: none under way
	count  int    // of its frames
	packs  []*pack
	frames []*frame
}

func newPacker(p *push, g *errgroup.Group, ctx context.Context) *packer {
	n := max(2, int(p.o.Memory/format.PackSize))
	k := &packer{push: p, ctx: ctx, uploads: g, free: make(chan []byte, n)}
	for range n {
		k.free <- nil // made when it is first needed
	}
	return k
}

// add copies stored into the pack under way.
func (k *packer) add(f *frame, stored []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.buf != nil && (len(k.buf)+len(stored) > format.PackSize || k.count == format.PackFrames) {
		k.send()
	}
	if k.buf == nil {
		select {
		case k.buf = <-k.free:
		case <-k.ctx.Done():
			return context.Cause(k.ctx)
		}
		if k.buf == nil {
			k.buf = make([]byte, 0, format.PackSize)
		}
		k.packs = append(k.packs, new(pack))
	}
	f.pack, f.Offset = k.packs[len(k.packs)-1], uint32(len(k.buf))
	k.buf = append(k.buf, stored...)
	k.frames = append(k.frames, f)
	k.count++
	return nil
}

// close sends the last pack.
func (k *packer) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.buf != nil {
		k.send()
	}
	return nil
}

// send uploads the pack under way.
func (k *packer) send() {
	buf, p := k.buf, k.packs[len(k.packs)-1]
	k.buf, k.count = nil, 0
	k.uploads.Go(func() error {
		p.Size, p.SHA256 = uint64(len(buf)), sha256.Sum256(buf)
		c := store.Bytes(buf, packDescriptor(p.Pack).Digest)
		if err := k.store.Put(k.ctx, store.Blob(c.Digest), c); err != nil {
			return err
		}
		k.pushed.Add(p.Size)
		k.o.Progress(Progress{Step: "upload", Done: k.pushed.Load()})
		k.free <- buf[:0]
		return nil
	})
}

func packDescriptor(p format.Pack) v1.Descriptor {
	return v1.Descriptor{
		MediaType: MediaTypePack, Size: int64(p.Size),
		Digest: digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(p.SHA256[:])),
	}
}

// index numbers packs and frames and writes down where every page is. Of the parent it
// keeps what is referred to, and nothing else.
func (c *capture) index() *format.Index {
	x := &format.Index{}
	for _, p := range c.packer.packs {
		p.number = len(x.Packs)
		x.Packs = append(x.Packs, p.Pack)
	}
	frames := append(c.packer.frames, c.inherited(x)...)
	slices.SortFunc(frames, func(a, b *frame) int {
		return cmp.Or(cmp.Compare(a.pack.number, b.pack.number), cmp.Compare(a.Offset, b.Offset))
	})
	for i, f := range frames {
		f.number, f.Pack = uint32(i), uint32(f.pack.number)
		x.Frames = append(x.Frames, f.Frame)
	}
	for i, s := range c.config.Spaces {
		space := format.Space{Name: s.Name, Size: uint64(s.Size)}
		for _, r := range c.readers {
			for _, p := range r.places[i] {
				space.Runs = append(space.Runs, format.Run{Page: p.page, Frame: p.frame.number, Slot: p.slot, Count: p.count})
			}
		}
		slices.SortFunc(space.Runs, func(a, b format.Run) int { return cmp.Compare(a.Page, b.Page) })
		x.Spaces = append(x.Spaces, space)
	}
	return x
}

// inherited returns the parent's frames in use and adds their packs to x.
func (c *capture) inherited(x *format.Index) []*frame {
	if c.o.Parent == nil {
		return nil
	}
	t := c.o.Parent
	for i := range t.frames {
		t.frames[i].used, t.frames[i].pack.used = false, false // it may have served an attempt before
	}
	for _, r := range c.readers {
		for i := range r.places {
			for _, p := range r.places[i] {
				p.frame.used = true
			}
		}
	}
	var frames []*frame
	for i := range t.frames {
		if f := &t.frames[i]; f.used {
			frames = append(frames, f)
			f.pack.used = true
		}
	}
	for _, p := range t.packs {
		if p.used {
			p.number = len(x.Packs)
			x.Packs = append(x.Packs, p.Pack)
		}
	}
	return frames
}
