package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"sync/atomic"

	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/store"
)

// pack is one of this snapshot or of its parent.
type pack struct {
	format.Pack
	number int       // in the index
	key    *seal.Key // nil: not sealed
	live   uint64    // stored bytes of pages in use, about; of tally
	pages  uint64    // in use; of tally
	read   uint64    // bytes that a restore fetches of it; of tally

	dropped bool // nothing of it is referred to any more
}

// frame is one of this snapshot or of its parent. Its place and number are known at the
// end.
type frame struct {
	format.Frame
	pack   *pack
	number uint32

	slots   uint16 // pages in use; of tally
	dropped bool   // its pages are packed anew

	proofs []pagetable.Entry // by slot, where a table is made (next.go)
	places []place           // by slot, until the pack is sent (finished.go)
	again  bool              // a push that failed has stored it
}

// packer joins frames to packs and sends each pack when it is full. The number of
// buffers bounds the memory: who fills packs faster than they leave waits here, and is told
// before that packs pile up.
type packer struct {
	*push
	ctx     context.Context
	uploads *errgroup.Group
	free    chan []byte
	slots   chan struct{} // of uploads at once
	waiting atomic.Int32  // packs that are full and wait for a slot
	stalled atomic.Bool   // the buffer under way had to be waited for
	flying  sync.WaitGroup

	mu     sync.Mutex
	buf    []byte // nil: none under way
	count  int    // of its frames
	packs  []*pack
	frames []*frame
	sent   int // of frames: those before the pack under way
}

func newPacker(p *push, g *errgroup.Group, ctx context.Context) *packer {
	n := packBuffers(p.o.Memory)
	k := &packer{push: p, ctx: ctx, uploads: g, free: make(chan []byte, n), slots: make(chan struct{}, p.o.Concurrency)}
	for range n {
		k.free <- nil // made when it is first needed
	}
	return k
}

// packBuffers is how many packs are under way at most: half of the memory, the other half is
// for frames that wait for the end of a pause.
func packBuffers(memory int64) int { return max(2, int(memory/2/format.PackSize)) }

// mostWaiting packs that pile up while the network keeps pace.
const mostWaiting = 1

// codec of the next frame: where packs pile up there is time to make them smaller, unless the cores are what is
// scarce.
func (k *packer) codec() format.Codec {
	switch {
	case k.o.Codec != CodecAuto:
		return k.o.Codec
	case !k.stalled.Load() && k.waiting.Load() <= mostWaiting:
		return format.MinLZ
	case k.o.Spare():
		return format.Zstd
	}
	return format.S2
}

// take waits for a buffer.
func (k *packer) take() error {
	select {
	case k.buf = <-k.free:
		k.stalled.Store(false)
		return nil
	default:
	}
	k.stalled.Store(true)
	select {
	case k.buf = <-k.free:
		return nil
	case <-k.ctx.Done():
		return context.Cause(k.ctx)
	}
}

// add copies stored into the pack under way.
func (k *packer) add(f *frame, stored []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.buf != nil && (len(k.buf)+len(stored) > format.PackSize || k.count == format.PackFrames) {
		k.send()
	}
	if k.buf == nil {
		if err := k.take(); err != nil {
			return err
		}
		if k.buf == nil {
			k.buf = make([]byte, 0, format.PackSize)
		}
		k.packs = append(k.packs, &pack{key: k.key})
	}
	f.pack, f.Offset = k.packs[len(k.packs)-1], uint32(len(k.buf))
	k.buf = append(k.buf, stored...)
	f.pack.Size = uint64(len(k.buf))
	k.frames = append(k.frames, f)
	k.count++
	return nil
}

// open is the pack under way; nil: none is.
func (k *packer) open() *pack {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.buf == nil {
		return nil
	}
	return k.packs[len(k.packs)-1]
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

// drain sends what there is and waits until nothing is under way.
func (k *packer) drain() error {
	err := k.close()
	k.flying.Wait()
	return err
}

// send uploads the pack under way.
func (k *packer) send() {
	buf, p := k.buf, k.packs[len(k.packs)-1]
	frames := k.frames[k.sent:]
	k.buf, k.count, k.sent = nil, 0, len(k.frames)
	k.flying.Add(1)
	k.uploads.Go(func() error {
		defer k.flying.Done()
		p.SHA256 = sha256.Sum256(buf)
		k.waiting.Add(1)
		select {
		case k.slots <- struct{}{}:
			defer func() { <-k.slots }()
			k.waiting.Add(-1)
		case <-k.ctx.Done():
			return context.Cause(k.ctx)
		}
		c := store.Bytes(buf, packDescriptor(p.Pack).Digest)
		if err := k.store.Put(k.ctx, store.Blob(c.Digest), c); err != nil {
			return err
		}
		k.pushed.Add(p.Size)
		k.finished.add(p, frames)
		k.kept(store.Blob(c.Digest), buf)
		k.keeper.stored(k.ctx, packDescriptor(p.Pack))
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
