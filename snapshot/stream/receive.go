package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot/format"
)

// Target is what a destination has made for the VM: the files are empty.
type Target struct {
	Ref    Ref
	Spaces []TargetSpace
	Disks  []TargetDisk
	State  *os.File
	Table  *os.File // for the page table; nil: none is taken

	// Base opens the page table when it is whole; nil: it is not known what RAM was. It may be nil.
	Base func(table *os.File) Base

	// Launched waits for what Complete has begun. The end of the first pass is answered after it: the source pauses its VM
	// no earlier. It may be nil.
	Launched func(ctx context.Context) error
	// Complete is called when all read-only disks are here, Load when everything is: what
	// it answers decides whether the source hears READY. Without a Base, written is nil.
	Complete func(ctx context.Context) error
	Load     func(ctx context.Context, digest string, end End, written *Written) error
	// Progress hears after each frame how many bytes have come so far, as they lay on the wire. It
	// may be nil.
	Progress func(moved uint64)
}

// TargetSpace is the file of an address space.
type TargetSpace struct {
	Area
	File *os.File
}

// TargetDisk is a read-only disk. File is nil where the node has it.
type TargetDisk struct {
	Blob
	File *os.File
}

// framesPerLane is how many frames may wait for each goroutine that writes them.
const framesPerLane = 4

// lastWords is how long telling the source why may take.
const lastWords = 2 * time.Second

// Receive takes a VM from conn, up to READY. After an error the files must not be used;
// the source is told why, as far as it can be.
func Receive(ctx context.Context, conn io.ReadWriteCloser, t Target) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	lanes := runtime.GOMAXPROCS(0)
	r := &receiver{
		ctx: ctx, cancel: cancel, t: t, in: NewReader(conn, lanes*(framesPerLane+1)+1), out: NewWriter(conn, 0),
		frames: make(chan *Frame, lanes*framesPerLane),
	}
	err := r.run(lanes)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err == nil {
		return nil
	}
	var remote *RemoteError
	if ctx.Err() == nil && !errors.As(err, &remote) && !errdefs.IsUnavailable(err) {
		// What the source still sends is read: to close before that would take the word back.
		defer time.AfterFunc(lastWords, func() { conn.Close() }).Stop()
		if r.out.Fail(ctx, err) == nil {
			_, _ = io.Copy(io.Discard, conn)
		}
	}
	return fmt.Errorf("receive VM %s: %w", t.Ref.VM, err)
}

type receiver struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	t      Target
	in     *Reader
	out    *Writer
	disks  *disks
	table  table
	since  since
	state  int64 // bytes that came

	answers  bool   // the source wants to hear of barriers
	barriers uint64 // that came

	frames  chan *Frame
	pending sync.WaitGroup // frames that the lanes have
	lanes   sync.WaitGroup
	mu      sync.Mutex
	err     error // of a lane, the first
}

func (r *receiver) run(lanes int) error {
	for _, s := range r.t.Spaces {
		if err := s.File.Truncate(s.Size); err != nil {
			return fileError(s.Name, err)
		}
	}
	if err := r.greet(); err != nil {
		return err
	}
	for range lanes {
		r.lanes.Go(r.lane)
	}
	err := r.all()
	close(r.frames)
	r.lanes.Wait()
	if e := r.failed(); e != nil {
		err = e
	}
	return err
}

// greet wants the VM that was announced, no other, and asks for the disks that are
// missing.
func (r *receiver) greet() error {
	var h Hello
	if err := r.in.expect(KindHello, &h); err != nil {
		return err
	}
	if err := h.validate(); err != nil {
		return err
	}
	want := Hello{Version: version.Pages, Ref: r.t.Ref}
	r.disks = newDisks(r.t.Disks)
	for _, s := range r.t.Spaces {
		want.Spaces = append(want.Spaces, s.Area)
	}
	for _, d := range r.t.Disks {
		want.Disks = append(want.Disks, d.Blob)
	}
	if h.Ref != want.Ref || !slices.Equal(h.Spaces, want.Spaces) || !slices.Equal(h.Disks, want.Disks) {
		return fmt.Errorf("stream: the source sends %+v, expected was %+v: %w", h, want, errdefs.ErrFailedPrecondition)
	}
	r.answers = h.Reached
	accept := Accept{Disks: r.disks.lacking(), Table: r.table.offered(&h, r.t.Table), Reached: h.Reached}
	if err := r.out.JSON(r.ctx, KindAccept, accept); err != nil {
		return cut(err)
	}
	if r.disks.whole() {
		return r.t.Complete(r.ctx)
	}
	return nil
}

// all takes frames up to the end, and answers it.
func (r *receiver) all() error {
	for {
		f, err := r.in.Next()
		if err == io.EOF {
			err = cut(err)
		}
		if err == nil {
			err = r.failed()
		}
		if err != nil {
			if f != nil {
				f.Free()
			}
			return err
		}
		if r.t.Progress != nil {
			r.t.Progress(r.in.bytes)
		}
		if f.Kind == KindPages { // the lanes verify it
			r.pending.Add(1)
			r.frames <- f
			continue
		}
		over, err := r.inline(f)
		f.Free()
		if over || err != nil {
			return err
		}
	}
}

// inline handles a frame that keeps its place among the others.
func (r *receiver) inline(f *Frame) (over bool, err error) {
	if err := f.Verify(); err != nil {
		return false, err
	}
	switch f.Kind {
	case KindBarrier:
		return false, r.barrier()
	case KindZeros:
		return false, r.zeros(f)
	case KindDisk:
		whole, err := r.disks.take(f)
		if err == nil && whole {
			err = r.t.Complete(r.ctx)
		}
		return false, err
	case KindTable:
		err := r.table.take(f)
		if err == nil && r.table.whole() {
			r.since.begin(&r.t, r.table.f)
		}
		return false, err
	case KindState:
		return false, r.saved(f)
	case KindEnd:
		return true, r.end(f)
	case KindFailed:
		return false, f.failure()
	}
	return false, broken("frame of kind %d from a source", f.Kind)
}

// barrier has all that came before it written. The first one is before the first pass, the second one after it.
func (r *receiver) barrier() error {
	r.pending.Wait()
	r.barriers++
	if err := r.failed(); err != nil || !r.answers {
		return err
	}
	if r.barriers == 2 && r.t.Launched != nil && r.disks.whole() {
		if err := r.t.Launched(r.ctx); err != nil {
			return err
		}
	}
	if err := r.out.JSON(r.ctx, KindReached, Reached{Barrier: r.barriers}); err != nil {
		return cut(err)
	}
	return nil
}

// maxState bounds the device state.
const maxState = 1 << 30

func (r *receiver) saved(f *Frame) error {
	data, err := f.at(r.state, maxState)
	if err != nil {
		return err
	}
	if _, err := r.t.State.WriteAt(data, r.state); err != nil {
		return fileError("state", err)
	}
	r.state += int64(len(data))
	return nil
}

// at answers the bytes of a frame that must follow those before it.
func (f *Frame) at(offset, most int64) ([]byte, error) {
	if len(f.Body) <= 8 || len(f.Body) > 8+chunk {
		return nil, broken("frame of kind %d with %d bytes", f.Kind, len(f.Body))
	}
	at, data := binary.LittleEndian.Uint64(f.Body), f.Body[8:]
	if at != uint64(offset) || offset+int64(len(data)) > most {
		return nil, broken("frame of kind %d at %d, expected was %d of at most %d", f.Kind, at, offset, most)
	}
	return data, nil
}

// end checks that all came, has it loaded and says so.
func (r *receiver) end(f *Frame) error {
	r.pending.Wait()
	if err := r.failed(); err != nil {
		return err
	}
	var e End
	if err := f.decode(&e); err != nil {
		return err
	}
	if e.Sum != r.in.before {
		return broken("its frames have digest %s, the source sent %s", r.in.before, e.Sum)
	}
	if !r.disks.whole() {
		return broken("it ended before its disks")
	}
	if !r.table.whole() {
		return broken("it ended before its page table")
	}
	digest := DigestPrefix + r.in.all.text()
	if err := r.t.Load(r.ctx, digest, e, r.since.written()); err != nil {
		return err
	}
	if err := r.out.JSON(r.ctx, KindReady, Ready{Digest: digest}); err != nil {
		return cut(err)
	}
	return nil
}

func (r *receiver) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// lane verifies, decodes and writes frames of pages.
func (r *receiver) lane() {
	var coder format.Coder
	defer coder.Close()
	for f := range r.frames {
		err := r.failed()
		if err == nil {
			err = r.pages(&coder, f)
		}
		f.Free()
		if err != nil {
			r.mu.Lock()
			if r.err == nil {
				r.err = err
			}
			r.mu.Unlock()
		}
		r.pending.Done()
	}
}
