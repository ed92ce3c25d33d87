package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/stream"
)

// sendPasses is how many passes there are at most while the VM runs: what they send is no
// burden for anybody behind the move.
const sendPasses = 30

// sendAim is how short a pause is made as long as passes shrink, however long it may be: a pass
// over what was written since the last one costs less than the pause that it saves.
const sendAim = pauseFixed + 4*time.Millisecond

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
	// Ready hears of the end before this end lets go of the VM's memory, which takes a while
	// for which the VM would stand still; it may be nil.
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

// Send streams a VM that runs to the destination at the other end of conn, pauses it when
// what is left fits the budget or does not shrink any more, and returns when the
// destination has all of it, exactly as it was in the pause, loaded and READY.
func Send(ctx context.Context, conn io.ReadWriteCloser, src Source, o SendOptions) (Sent, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	s := &sender{src: src, o: o, out: stream.NewWriter(conn, o.Bandwidth), in: stream.NewReader(conn, 2), news: make(chan struct{}, 1), state: make(chan error, 1)}
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
	passes
	src Source
	o   SendOptions
	out *stream.Writer
	in  *stream.Reader

	mu       sync.Mutex
	now      Progress
	interval time.Time // since when the tracker has told nothing
	size     uint64    // of RAM
	captured time.Time

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
		r, err := s.in.Ready(s.come)
		if err != nil {
			cancel(err) // whatever this end does, the other one has given up
			return
		}
		ready <- r
	}()
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
	out := Sent{RAM: s.size, Captured: s.captured, Passes: s.made, Untracked: s.untracked(), Resident: s.resident()}
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
	if err := s.prepare(ctx); err != nil {
		return "", err
	}
	if err := s.passes.run(); err != nil {
		return "", err
	}
	if err := <-s.state; err != nil {
		return "", err
	}
	return s.out.End(ctx, s.resume)
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
		s.spaces = append(s.spaces, newArea(sp, size))
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
	h.Table = wholeTable(s.o.Table)
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

// prepare says how the passes are made.
func (s *sender) prepare(ctx context.Context) error {
	s.passes = passes{
		ctx: ctx, spaces: s.spaces, live: &saving{s.o.Live, s}, tracker: s.o.Tracker, budget: s.o.Budget, aim: min(s.o.Budget, sendAim), most: sendPasses,
		cost: s.standstill, begin: s.open, behind: s.reach, over: func() { s.captured = time.Now() }, gone: s.lost,
	}
	seed := newSeed()
	for range runtime.GOMAXPROCS(0) {
		s.lookers = append(s.lookers, newLane(s, seed))
	}
	s.interval = time.Now()
	return s.warm()
}

func (s *sender) close() {
	for _, l := range s.lookers {
		l.(*lane).coder.Close()
	}
	for _, a := range s.spaces {
		a.close()
	}
}

// open begins a pass: a page is in one frame between two barriers.
func (s *sender) open(kind pass) error {
	s.note(func(p *Progress) {
		p.Pass++
		p.Done, p.Total = 0, p.Left
		p.Step = "send pages"
		if kind.last {
			p.Step = "send last pages"
		}
	})
	return s.barrier()
}

// standstill is what the pause would take, for looking at so many pages and sending them.
func (s *sender) standstill(rest uint64) time.Duration {
	took := s.looking(rest) + time.Duration(float64(rest)*s.pace())
	since := time.Since(s.interval)
	s.interval = time.Now()
	s.note(func(p *Progress) {
		p.Left, p.Expected = rest*format.PageSize, float64(took)/float64(time.Millisecond)
		p.Dirty = uint64(float64(p.Left) / max(since.Seconds(), 1e-3))
	})
	return took
}

// passFixed is what a pass costs before its first page, about.
const passFixed = 3 * time.Millisecond

// pace is how many nanoseconds it takes to send a page that was looked at: by what passes took,
// the last ones before all, which write to memory that the destination has touched before.
func (s *sender) pace() float64 {
	var took, sent float64
	for _, p := range s.made {
		looking := float64(p.Looked/format.PageSize) * float64(pausePerPage) / float64(len(s.lookers))
		took = took/4 + max(0, p.MS*float64(time.Millisecond)-float64(passFixed)-looking)
		sent = sent/4 + float64(p.Sent/format.PageSize)
	}
	return took / max(sent, 1)
}

func (s *sender) note(change func(*Progress)) {
	s.mu.Lock()
	change(&s.now)
	s.now.Moved = s.out.Moved()
	now := s.now
	s.mu.Unlock()
	s.o.Progress(now)
}

// lost tells the destination of pages that were sent and are holes now.
func (s *sender) lost(a *area, number int, pages *mask) error {
	b, space := a.blocks[number], s.index(a)
	var runs [][2]uint64
	first := uint64(number) * blockPages
	_ = pages.runs(func(from, to int) error {
		for i := from; i < to; i++ {
			if b.marks[i].frame != nil {
				runs = addRun(runs, first+uint64(i))
			}
		}
		return nil
	})
	if len(runs) == 0 {
		return nil
	}
	return s.out.Zeros(s.ctx, space, runs)
}

func addRun(runs [][2]uint64, page uint64) [][2]uint64 {
	if n := len(runs); n > 0 && runs[n-1][0]+runs[n-1][1] == page {
		runs[n-1][1]++
		return runs
	}
	return append(runs, [2]uint64{page, 1})
}

func (s *sender) index(a *area) int {
	for i := range s.spaces {
		if s.spaces[i] == a {
			return i
		}
	}
	return -1
}

// resident counts the bytes that are not zero.
func (s *sender) resident() (n uint64) {
	for _, a := range s.spaces {
		for _, b := range a.blocks {
			if b == nil {
				continue
			}
			for i := range b.marks {
				if b.marks[i].frame != nil {
					n += format.PageSize
				}
			}
		}
	}
	return n
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
