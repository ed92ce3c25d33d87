package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/semaphore"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// chunkFrames is what one core decodes at a time: a MiB of pages.
const chunkFrames = 16

// body is a pack on its way into the files.
type body struct {
	number int
	data   []byte
	at     int64 // bytes that have arrived
	next   int   // frame that has not been handed on

	f    *filler
	left atomic.Int32 // who still reads data

	mu    sync.Mutex
	again []byte // the pack, fetched once more
}

// chunk is frames of a pack whose bytes are there.
type chunk struct {
	*body
	first, end int
}

// verified is the pack fetched once more, and the digest of all of it looked at: a cache on
// the way may be wrong once.
func (b *body) verified(ctx context.Context) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.again == nil {
		p := b.f.src.Packs[b.number]
		data, err := store.ReadRetried(ctx, b.f.src.Store, p.Digest, p.Size)
		if err != nil {
			return nil, store.Lost("pack", p, err)
		}
		b.again = data
	}
	return b.again, nil
}

// forget drops that: it was wrong as well.
func (b *body) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.again = nil
}

func (b *body) done() {
	if b.left.Add(-1) == 0 {
		b.f.buffers.put(b.data)
	}
}

// buffers lends memory for packs, all together no more than its room.
type buffers struct {
	most int64
	room *semaphore.Weighted
	mu   sync.Mutex
	free [][]byte // for packs of the usual size
}

func newBuffers(most int64) *buffers {
	return &buffers{most: most, room: semaphore.NewWeighted(most)}
}

func bufferSize(n int) int { return max(n, format.PackSize) }

func (b *buffers) get(ctx context.Context, n int) ([]byte, error) {
	size := bufferSize(n)
	if err := b.room.Acquire(ctx, min(int64(size), b.most)); err != nil {
		return nil, context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if size > format.PackSize {
		b.free = nil
	} else if last := len(b.free) - 1; last >= 0 {
		buf := b.free[last]
		b.free = b.free[:last]
		return buf[:n], nil
	}
	return make([]byte, n, size), nil
}

func (b *buffers) put(buf []byte) {
	if cap(buf) == format.PackSize {
		b.mu.Lock()
		b.free = append(b.free, buf)
		b.mu.Unlock()
	}
	b.room.Release(min(int64(cap(buf)), b.most))
}

// fetch gets packs, and hands on what has arrived of them.
func (f *filler) fetch(ctx context.Context, packs <-chan int, chunks chan<- chunk) error {
	for p := range packs {
		data, err := f.buffers.get(ctx, int(f.src.Packs[p].Size))
		if err != nil {
			return err
		}
		b := &body{number: p, data: data, f: f}
		b.left.Store(1)
		b.next, _ = f.plan.frames(p)
		err = f.pack(ctx, b, chunks)
		for again := (attempts{f: f}); err != nil && again.after(ctx, store.Lost("pack", f.src.Packs[p], err)); {
			if err = f.pack(ctx, b, chunks); err == nil {
				again.over()
			}
		}
		b.done()
		if err != nil {
			return store.Lost("pack", f.src.Packs[p], fmt.Errorf("%s: %w", f.src.Packs[p].Digest, err))
		}
	}
	return nil
}

// whole gets a pack from its first byte on. Its digest is not asked for: the index, which
// has one, vouches for each frame, and no other byte is used. A connection that breaks
// costs what it brought once more, and no more.
func (f *filler) whole(ctx context.Context, b *body, chunks chan<- chunk) error {
	for try := 1; ; try++ {
		err := f.receive(ctx, b, chunks)
		if err == nil || try == 3 || ctx.Err() != nil || !errdefs.IsUnavailable(err) && !errdefs.IsDataLoss(err) {
			return err
		}
	}
}

func (f *filler) receive(ctx context.Context, b *body, chunks chan<- chunk) error {
	in, err := f.src.Store.Get(ctx, store.Blob(f.src.Packs[b.number].Digest))
	if err != nil {
		return err
	}
	defer in.Close()
	err = f.stream(ctx, b, in, chunks)
	if errdefs.IsDataLoss(err) {
		store.Reject(in) // too long or too short: the next try asks another host
	}
	return err
}

// stream reads a pack of which a part may be there, and hands on what arrives.
func (f *filler) stream(ctx context.Context, b *body, in io.Reader, chunks chan<- chunk) error {
	if _, err := io.CopyN(io.Discard, in, b.at); err != nil {
		return broken(ctx, err)
	}
	_, last := f.plan.frames(b.number)
	for b.next < last {
		end := min(b.next+chunkFrames, last)
		fr := &f.src.Index.Frames[end-1]
		if err := b.read(ctx, in, int64(fr.Offset)+int64(fr.Stored)); err != nil {
			return err
		}
		if err := b.send(ctx, end, chunks); err != nil {
			return err
		}
	}
	if err := b.read(ctx, in, int64(len(b.data))); err != nil {
		return err
	}
	switch n, err := in.Read(make([]byte, 1)); {
	case n > 0:
		return fmt.Errorf("more than %d bytes: %w", len(b.data), errdefs.ErrDataLoss)
	case err != nil && !errors.Is(err, io.EOF):
		return broken(ctx, err)
	}
	return nil
}

// read has the bytes up to end arrive.
func (b *body) read(ctx context.Context, in io.Reader, end int64) error {
	for b.at < end {
		n, err := in.Read(b.data[b.at:end])
		b.at += int64(n)
		if err != nil && b.at < end {
			return broken(ctx, err)
		}
	}
	return nil
}

// send hands frames up to end on.
func (b *body) send(ctx context.Context, end int, chunks chan<- chunk) error {
	b.left.Add(1)
	select {
	case chunks <- chunk{b, b.next, end}:
		b.next = end
		return nil
	case <-ctx.Done():
		b.done()
		return context.Cause(ctx)
	}
}

// broken gives an error in the middle of a pack its class.
func broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("it ends too early: %w", errdefs.ErrDataLoss)
	}
	return fmt.Errorf("read: %w: %w", err, errdefs.ErrUnavailable)
}
