package snapshot

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/stream"
)

// arrival is the destination of a world's VM.
type arrival struct {
	target           stream.Target
	ram, disk, state *os.File
	base             *os.File // nil: the node has it
	complete, loaded int
	end              stream.End
	written          *stream.Written
	digest           string
	fail             error // of Load
}

func newArrival(t *testing.T, w *world, lacks bool) *arrival {
	t.Helper()
	a := &arrival{ram: emptyFile(t, "ram"), disk: emptyFile(t, "disk"), state: emptyFile(t, "state")}
	if lacks {
		a.base = emptyFile(t, "base")
	}
	size := func(f *os.File) int64 {
		n, err := fileSize(f)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	a.target = stream.Target{
		Ref: stream.Ref(w.opts.Ref), State: a.state,
		Spaces: []stream.TargetSpace{
			{Area: stream.Area{Name: "ram0", Size: size(w.src.Spaces[0].File)}, File: a.ram},
			{Area: stream.Area{Name: "disk0", Size: size(w.src.Spaces[1].File)}, File: a.disk},
		},
		Disks: []stream.TargetDisk{
			{Blob: stream.Blob{ID: "layer0", Digest: w.src.Disks[0].Digest, Size: size(w.src.Disks[0].File)}, File: a.base}},
		Complete: func(context.Context) error { a.complete++; return nil },
		Load: func(_ context.Context, digest string, end stream.End, written *stream.Written) error {
			a.loaded++
			a.digest, a.end, a.written = digest, end, written
			return a.fail
		},
	}
	return a
}

func (w *world) sending(g *guest, tracker Tracker) SendOptions {
	return SendOptions{Ref: w.opts.Ref, Live: g, Tracker: tracker, Budget: 50 * time.Millisecond}
}

// move runs both ends; what they answer is told apart.
func move(t *testing.T, w *world, a *arrival, o SendOptions, from, to io.ReadWriteCloser) (sent Sent, sending,
	receiving error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		err := stream.Receive(t.Context(), to, a.target)
		to.Close()
		done <- err
	}()
	sent, sending = Send(t.Context(), from, w.src, o)
	from.Close()
	return sent, sending, <-done
}

// secure is a connection between two ends that know each other.
func secure(t *testing.T) (source, destination net.Conn) {
	t.Helper()
	one, err := stream.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	two, err := stream.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan net.Conn, 1)
	go func() {
		raw, err := l.Accept()
		if err == nil {
			raw, err = stream.Ends{Own: two, Peer: one.Certificate, Channel: "c1"}.Server(t.Context(), raw)
		}
		if err != nil {
			t.Error(err)
		}
		got <- raw
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	source, err = stream.Ends{Own: one, Peer: two.Certificate, Channel: "c1"}.Client(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	return source, <-got
}

// check wants the destination to have what the files are now.
func (a *arrival) check(t *testing.T, w *world, g *guest, sent Sent) {
	t.Helper()
	if sumFile(t, a.ram) != sumFile(t, g.ram) {
		t.Error("RAM differs")
	}
	if sumFile(t, a.disk) != sumFile(t, g.disk) {
		t.Error("the disk differs")
	}
	if sumFile(t, a.state) != sumFile(t, w.src.State) {
		t.Error("the state differs")
	}
	if a.base != nil && sumFile(t, a.base) != sumFile(t, w.src.Disks[0].File) {
		t.Error("the read-only disk differs")
	}
	if string(a.end.Resume) != g.resume || a.digest != sent.Digest || a.complete != 1 || a.loaded != 1 {
		t.Errorf("resume %s, digest %s for %s, complete %d times, loaded %d", a.end.Resume, a.digest, sent.Digest,
			a.complete, a.loaded)
	}
}

// What arrives is the VM of the pause, byte by byte, however its pages were tracked: of a
// guest that writes, moves and frees pages while it is sent.
func TestSend(t *testing.T) {
	trackers := map[string]func(*guest) Tracker{
		"between":       func(g *guest) Tracker { return &model{guest: g, between: true} },
		"at the end":    func(g *guest) Tracker { return &model{guest: g} },
		"none":          func(*guest) Tracker { return nil },
		"fails second":  func(g *guest) Tracker { return &model{guest: g, between: true, failAt: 2} },
		"fails at last": func(g *guest) Tracker { return &model{guest: g, failAt: 2} },
	}
	for name, tracker := range trackers {
		for _, budget := range []time.Duration{0, precopy.PauseFixed + time.Microsecond, 50 * time.Millisecond} {
			t.Run(name+"/"+budget.String(), func(t *testing.T) {
				w := newWorld(t, uint64(budget)+uint64(len(name)))
				g := newGuest(w, 3)
				a := newArrival(t, w, budget == 0)
				o := w.sending(g, tracker(g))
				o.Budget = budget
				from, to := secure(t)
				go g.run()
				sent, err, rerr := move(t, w, a, o, from, to)
				if err != nil || rerr != nil {
					t.Fatal(err, rerr)
				}
				a.check(t, w, g, sent)
				if n := len(sent.Passes); !g.paused || n == 0 || budget == 0 && n != 1 || budget > 0 && n < 2 {
					t.Errorf("paused %v, passes %+v", g.paused, sent.Passes)
				}
			})
		}
	}
}

// The page table of a VM goes with it: after a live move a snapshot pushes what is new, as it would have at the
// source.
func TestSendTakesTheTable(t *testing.T) {
	w := newWorld(t, 33)
	_, _, table := w.goesOn(t, 5, func(*guest) Tracker { return nil })
	g := newGuest(w, 6)
	close(g.stopped) // it changes nothing
	a := newArrival(t, w, false)
	a.target.Table = emptyFile(t, "table")
	o := w.sending(g, nil)
	o.Table, o.Budget = table, 0
	a.target.Base = func(f *os.File) stream.Base {
		b, err := OpenBase(f, "ram0", ramSize)
		if err != nil {
			t.Error(err)
		}
		return b
	}
	from, to := secure(t)
	sent, err, rerr := move(t, w, a, o, from, to)
	if err != nil || rerr != nil {
		t.Fatal(err, rerr)
	}
	a.check(t, w, g, sent)
	a.checkWritten(t, table)
	pushed := func(table *os.File) Figures {
		o := w.opts
		var err error
		if o.Parent, err = OpenTable(table); err != nil {
			t.Fatal(err)
		}
		src := w.src
		src.Spaces = slices.Clone(src.Spaces)
		src.Spaces[0].File, src.Spaces[1].File, src.State = a.ram, a.disk, a.state
		receipt, err := Push(t.Context(), w.st, src, o)
		if err != nil {
			t.Fatal(err)
		}
		w.holds(t, receipt.Digest, instant{sumFile(t, a.ram), sumFile(t, a.disk)})
		receipt.Figures.Pushed, receipt.Figures.Total = 0, 0 // of one order of the packs
		return receipt.Figures
	}
	if there, here := pushed(a.target.Table), pushed(table); there != here || there.New == 0 ||
		there.New > there.Resident*2/3 {
		t.Errorf("pushed %+v, at the source %+v", there, here)
	}
	unfinished := emptyFile(t, "unfinished")
	if err := unfinished.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	if pagetable.Whole(table) == 0 || pagetable.Whole(nil) != 0 || pagetable.Whole(unfinished) != 0 ||
		pagetable.Whole(emptyFile(t, "empty")) != 0 {
		t.Error("a table counts as whole that is not, or the other way round")
	}
}

// checkWritten wants each page of the table to be written whose content is another, and no other page to be.
func (a *arrival) checkWritten(t *testing.T, table *os.File) {
	t.Helper()
	b, err := OpenBase(table, "ram0", ramSize)
	if err != nil {
		t.Fatal(err)
	}
	written, page := map[int64]bool{}, make([]byte, format.PageSize)
	for _, p := range a.written.Parts {
		for ; p.Offset < p.End; p.Offset += format.PageSize {
			written[p.Offset] = true
		}
	}
	for at := int64(0); at < ramSize; at += format.PageSize {
		if _, err := a.ram.ReadAt(page, at); err != nil {
			t.Fatal(err)
		}
		n := uint64(at / format.PageSize)
		if want := b.Has(n) && !b.Same(n, page); written[at] != want {
			t.Errorf("page %d is written: %v, want %v", n, written[at], want)
		}
	}
	if n := len(written); n == 0 || n > ramPages*3/4 {
		t.Errorf("%d of %d pages are written", n, ramPages)
	}
}

// A guest that is faster than the wire is paused when the passes do not shrink any more. A guest that calms down
// gets passes until the rest is small, also where more would fit. Pages that the guest frees are holes at the
// destination.
func TestSendConverges(t *testing.T) {
	if passes := calming(t, precopy.PauseFixed, 0); len(passes) < 4 { // nothing fits it
		t.Errorf("passes %+v", passes)
	}
	if passes := calming(t, time.Minute, 64<<20); len(passes) < 4 { // all fits it
		t.Errorf("passes %+v", passes)
	}
}

// calming is a move of a guest that writes less and less, and frees a page each time.
func calming(t *testing.T, budget time.Duration, bandwidth int64) []Pass {
	t.Helper()
	w := newWorld(t, 31)
	g := newGuest(w, 4)
	close(g.stopped)
	n := 512
	o := w.sending(g, stepped{&model{guest: g, between: true}, func() {
		for page := range n {
			g.write(int64(page), randomBytes(g.rng, format.PageSize))
		}
		g.punch(int64(n) + 1)
		n = n * 6 / 10
	}})
	o.Budget, o.Bandwidth = budget, bandwidth
	a := newArrival(t, w, false)
	from, to := secure(t)
	sent, err, rerr := move(t, w, a, o, from, to)
	if err != nil || rerr != nil {
		t.Fatal(err, rerr)
	}
	a.check(t, w, g, sent)
	return sent.Passes
}

// A bandwidth is kept, and the progress that both ends tell counts the bytes that were sent.
func TestSendBandwidth(t *testing.T) {
	w := newWorld(t, 32)
	g := newGuest(w, 4)
	o := w.sending(g, &model{guest: g, between: true})
	o.Budget, o.Bandwidth = 0, 4<<20
	var last Progress
	var mu sync.Mutex // readers tell at once
	o.Progress = func(p Progress) { mu.Lock(); defer mu.Unlock(); last = p }
	from, to := secure(t)
	a := newArrival(t, w, false)
	var came uint64
	a.target.Progress = func(moved uint64) { came = moved }
	begun := time.Now()
	go g.run()
	sent, err, rerr := move(t, w, a, o, from, to)
	if err != nil || rerr != nil {
		t.Fatal(err, rerr)
	}
	least := time.Duration(float64(sent.Moved)/float64(o.Bandwidth)*float64(time.Second)) / 2
	if took := time.Since(begun); took < least {
		t.Errorf("%d bytes in %v", sent.Moved, took)
	}
	if last.Pass == 0 || last.Moved == 0 || last.Moved > sent.Moved {
		t.Errorf("progress %+v of %+v", last, sent)
	}
	if came < sent.Moved/2 {
		t.Errorf("the destination was told of %d bytes of %d", came, sent.Moved)
	}
}

// The destination's own errors reach the source with their class, and nothing is READY.
func TestSendIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*world, *arrival)
		want  func(error) bool
	}{
		"another VM":  {func(_ *world, a *arrival) { a.target.Ref.VM = "default/other" }, errdefs.IsFailedPrecondition},
		"another try": {func(_ *world, a *arrival) { a.target.Ref.Attempt++ }, errdefs.IsFailedPrecondition},
		"other sizes": {func(_ *world, a *arrival) { a.target.Spaces[1].Size++ }, errdefs.IsFailedPrecondition},
		"state unfit": {func(_ *world, a *arrival) {
			a.fail = fmt.Errorf("load: %w", errdefs.ErrInvalidArgument)
		}, errdefs.IsInvalidArgument},
		"full": {func(_ *world, a *arrival) {
			a.target.Complete = func(context.Context) error { return errdefs.ErrResourceExhausted }
		}, errdefs.IsResourceExhausted},
		"file is closed": {func(_ *world, a *arrival) { a.state.Close() }, errdefs.IsInternal},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 33)
			g := newGuest(w, 4)
			a := newArrival(t, w, true)
			c.spoil(w, a)
			from, to := secure(t)
			go g.run()
			_, err, rerr := move(t, w, a, w.sending(g, nil), from, to)
			if !g.paused {
				close(g.stop)
				<-g.stopped
			}
			if !c.want(err) || rerr == nil {
				t.Errorf("source %v, destination %v", err, rerr)
			}
		})
	}
}
