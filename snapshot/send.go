package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/stream"
)

// sendPasses is how many passes there are at most while the VM runs: what they send costs nothing
// after the move.
const sendPasses = 30

// sendAim is how short a pause is made as long as passes shrink, however long it may be: a pass
// over what was written since the last one costs less than the pause that it saves.
const sendAim = precopy.PauseFixed + 4*time.Millisecond

// SendOptions of Send. Ref and Live are required.
type SendOptions struct {
	Ref       Ref
	Live      Live          // State of the Source is filled when its Save returns
	Budget    time.Duration // of the pause; 0: no passes before it
	Tracker   Tracker       // nil: all pages are compared
	Table     *os.File      // page table of the VM, which goes along; nil: it has none
	Bandwidth int64         // bytes a second; 0: no bound
	Progress  func(Progress)
	// Ended hears the digest of all that was sent, before the destination has said READY; it
	// may be nil, and does not block.
	Ended func(digest string)
	// Ready hears of the end before this end lets go of the VM's memory. That takes a while, for which the VM would
	// stand still. It may be nil.
	Ready func(Sent)
}

// Sent is what has moved.
type Sent struct {
	Digest   string    `json:"digest"` // stream.DigestPrefix and that of all frames
	Resident uint64    `json:"resident"`
	RAM      uint64    `json:"ram"`
	Moved    uint64    `json:"moved"` // bytes on the wire
	Captured time.Time `json:"captured"`
	Ready    time.Time `json:"ready"`

	Passes    []Pass `json:"passes,omitempty"`
	Untracked string `json:"untracked,omitempty"`
}

// Send streams a VM that runs to the destination at the other end of conn. It pauses the VM when what is left fits
// the budget or does not shrink any more. It returns when the destination has all of it, exactly as it was in the
// pause, loaded and READY.
func Send(ctx context.Context, conn io.ReadWriteCloser, src Source, o SendOptions) (Sent, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	s := &sender{ctx: ctx, seed: pagetable.NewSeed(), src: src, o: o, out: stream.NewWriter(conn, o.Bandwidth),
		in: stream.NewReader(conn, 2), news: make(chan struct{}, 1), state: make(chan error, 1)}
	if s.o.Progress == nil {
		s.o.Progress = func(Progress) {}
	}
	sent, err := s.run(ctx, cancel)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		s.tell(ctx, err, func() { conn.Close() })
		return Sent{}, fmt.Errorf("send %s: %w", o.Ref.VM, err)
	}
	return sent, nil
}

// sender is one run of Send.
type sender struct {
	ctx  context.Context
	src  Source
	o    SendOptions
	out  *stream.Writer
	in   *stream.Reader
	pre  *precopy.Precopy
	sent *precopy.Pages[sentPage]
	seed uint64 // of their sums

	lanes []*lane

	mu       sync.Mutex
	now      Progress
	interval time.Time // when the last pass began
	sizes    []int64   // of spaces
	size     uint64    // of RAM
	captured time.Time
	read     precopy.Result

	state    chan error    // it has been sent, or not
	answers  bool          // the destination says what it has come to
	barriers uint64        // that were sent
	reached  atomic.Uint64 // the last one that it has come to
	news     chan struct{} // there is another one
}

// lastWords is how long telling the other end why may take.
const lastWords = 2 * time.Second

func (s *sender) tell(ctx context.Context, err error, cancel func()) {
	var remote *stream.RemoteError
	if ctx.Err() == nil && !errors.As(err, &remote) && !errdefs.IsUnavailable(err) {
		defer time.AfterFunc(lastWords, cancel).Stop()
		_ = s.out.Fail(ctx, err)
	}
}

func (s *sender) run(ctx context.Context, cancel context.CancelCauseFunc) (Sent, error) {
	if err := s.greet(ctx); err != nil {
		return Sent{}, err
	}
	ready, heard := make(chan stream.Ready, 1), make(chan struct{})
	go func() {
		defer close(heard)
		r, err := s.in.Ready(s.noteReached)
		if err != nil {
			cancel(err) // whatever this end does, the other one has given up
			return
		}
		ready <- r
	}()
	s.prepare()
	defer s.close()
	digest, err := s.all(ctx)
	if errdefs.IsUnavailable(err) { // the other end may have said why
		select {
		case <-heard:
		case <-time.After(lastWords):
		}
	}
	if err != nil {
		return Sent{}, err
	}
	if s.o.Ended != nil {
		s.o.Ended(digest)
	}
	out := Sent{RAM: s.size, Captured: s.captured, Passes: s.read.Passes, Untracked: s.read.Untracked,
		Resident: s.resident()}
	select {
	case r := <-ready:
		if r.Digest != digest {
			return Sent{}, fmt.Errorf("the destination has %s, %s was sent: %w", r.Digest, digest, errdefs.ErrDataLoss)
		}
	case <-ctx.Done():
		return Sent{}, context.Cause(ctx)
	}
	out.Digest, out.Ready, out.Moved = digest, time.Now(), s.out.Moved()
	if s.o.Ready != nil {
		s.o.Ready(out)
	}
	return out, nil
}

// all sends pages, state and end.
func (s *sender) all(ctx context.Context) (string, error) {
	err := s.pre.Open()
	if err != nil {
		return "", err
	}
	if s.read, err = s.pre.Run(ctx); err != nil {
		return "", err
	}
	if err := <-s.state; err != nil {
		return "", err
	}
	return s.out.End(ctx, s.read.Resume)
}

// greet says what comes, and sends the disks that the destination lacks and the page table.
func (s *sender) greet(ctx context.Context) error {
	h := stream.Hello{Version: version.Pages, Ref: stream.Ref(s.o.Ref), Reached: true}
	for _, sp := range s.src.Spaces {
		size, err := fileSize(sp.File)
		if err != nil {
			return fmt.Errorf("space %s: %w", sp.Name, err)
		}
		if sp.Disk == "" {
			s.size += uint64(size)
		}
		h.Spaces = append(h.Spaces, stream.Area{Name: sp.Name, Size: size})
		s.sizes = append(s.sizes, size)
	}
	files := map[string]int{}
	for i, d := range s.src.Disks {
		size, err := fileSize(d.File)
		if err != nil {
			return fmt.Errorf("disk %s: %w", d.ID, err)
		}
		h.Disks = append(h.Disks, stream.Blob{ID: d.ID, Digest: d.Digest, Size: size})
		files[d.ID] = i
	}
	h.Table = pagetable.Whole(s.o.Table)
	if err := s.out.JSON(ctx, stream.KindHello, h); err != nil {
		return err
	}
	accept, err := s.in.Accept()
	if err != nil {
		return err
	}
	s.answers = accept.Reached
	for _, id := range accept.Disks {
		i, ok := files[id]
		if !ok {
			return fmt.Errorf("the destination wants disk %q, which the VM has not: %w", id, errdefs.ErrDataLoss)
		}
		s.note(func(p *Progress) { p.Step, p.Total = "send disks", uint64(h.Disks[i].Size) })
		if err := s.out.Copy(ctx, stream.KindDisk, i, s.src.Disks[i].File, h.Disks[i].Size); err != nil {
			return err
		}
	}
	if accept.Table {
		return s.out.Copy(ctx, stream.KindTable, 0, s.o.Table, h.Table)
	}
	return nil
}

// saving has the state sent as soon as it is there, while others look for the last pages.
type saving struct {
	Live
	s *sender
}

func (v *saving) Save(ctx context.Context) (json.RawMessage, error) {
	resume, err := v.Live.Save(ctx)
	if err != nil {
		return nil, err
	}
	size, err := stateSize(v.s.src.State)
	if err != nil {
		return nil, err
	}
	go func() { v.s.state <- v.s.out.Copy(ctx, stream.KindState, 0, v.s.src.State, size) }()
	return resume, nil
}

func stateSize(f *os.File) (int64, error) {
	size, err := fileSize(f)
	if err == nil && size > MaxState {
		err = fmt.Errorf("%d bytes: %w", size, errdefs.ErrOutOfRange)
	}
	if err != nil {
		return 0, fmt.Errorf("state: %w", err)
	}
	return size, nil
}
