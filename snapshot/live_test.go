package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/store"
)

// guest is a VM that writes, moves and frees pages until it is paused, and a tracker that
// knows of its RAM.
type guest struct {
	ram, disk *os.File
	rng       *rand.Rand
	hot       int // pages that are written all the time

	mu      sync.Mutex
	written map[int64]bool
	stop    chan struct{}
	stopped chan struct{}
	paused  bool
	resume  string
	fail    error // of Pause
	inSave  func()
}

func newGuest(w *world, seed uint64) *guest {
	return &guest{
		ram: w.src.Spaces[0].File, disk: w.src.Spaces[1].File, rng: rand.New(rand.NewPCG(seed, 9)), hot: 8,
		written: map[int64]bool{}, stop: make(chan struct{}), stopped: make(chan struct{}), resume: `{"offset":8}`,
	}
}

const ramPages = ramSize / format.PageSize

// run writes until Pause.
func (g *guest) run() {
	defer close(g.stopped)
	var last []byte
	for i := 0; ; i++ {
		select {
		case <-g.stop:
			return
		default:
		}
		page := int64(g.rng.IntN(ramPages))
		switch {
		case i%3 == 0:
			page = int64(g.rng.IntN(g.hot))
			last = randomBytes(g.rng, format.PageSize)
			g.write(page, last)
		case i%17 == 0:
			g.punch(page)
		case i%7 == 0:
			g.write(page, make([]byte, format.PageSize))
		case i%5 == 0 && last != nil:
			g.write(page, last) // what lay elsewhere
		case i%11 == 0:
			_, _ = g.disk.WriteAt(randomBytes(g.rng, 512), int64(g.rng.IntN(1<<20)))
		}
		if i%50 == 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
}

func (g *guest) write(page int64, data []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, _ = g.ram.WriteAt(data, page*format.PageSize)
	g.written[page] = true
}

func (g *guest) punch(page int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = unix.Fallocate(int(g.ram.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, page*format.PageSize,
		format.PageSize)
}

func (g *guest) Prepare(context.Context) error { return nil }

func (g *guest) Pause(context.Context) error {
	if g.fail != nil {
		return g.fail
	}
	close(g.stop)
	<-g.stopped
	g.paused = true
	return nil
}

// Save writes to RAM, as a device might.
func (g *guest) Save(context.Context) (json.RawMessage, error) {
	g.write(77, randomBytes(g.rng, format.PageSize))
	if g.inSave != nil {
		g.inSave()
	}
	return json.RawMessage(g.resume), nil
}

// model is a tracker of a guest.
type model struct {
	*guest
	between bool
	failAt  int
	calls   int
	armed   bool
}

func (m *model) Between() bool { return m.between }

func (m *model) Next(last bool, written func(offset, end int64)) (bool, error) {
	if m.calls++; m.calls == m.failAt {
		return false, errors.New("failed on purpose")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.armed && (m.between || last)
	if known {
		for page := range m.written {
			written(page*format.PageSize, (page+1)*format.PageSize)
		}
	}
	if !last || !known {
		clear(m.written)
	}
	m.armed = true
	return known, nil
}

// slow is a store whose uploads take long enough for the guest to go on.
type slow struct{ store.Store }

func (s slow) Put(ctx context.Context, o store.Object, c store.Content) error {
	time.Sleep(3 * time.Millisecond)
	return s.Store.Put(ctx, o, c)
}

// What is restored is the VM of the pause, byte by byte, however its pages were tracked.
func TestLive(t *testing.T) {
	trackers := map[string]func(*guest) Tracker{
		"between":        func(g *guest) Tracker { return &model{guest: g, between: true} },
		"at the end":     func(g *guest) Tracker { return &model{guest: g} },
		"none":           func(*guest) Tracker { return nil },
		"fails first":    func(g *guest) Tracker { return &model{guest: g, between: true, failAt: 1} },
		"fails second":   func(g *guest) Tracker { return &model{guest: g, between: true, failAt: 2} },
		"fails at last":  func(g *guest) Tracker { return &model{guest: g, failAt: 2} },
		"fails at third": func(g *guest) Tracker { return &model{guest: g, between: true, failAt: 3} },
	}
	for name, tracker := range trackers {
		for _, budget := range []time.Duration{0, precopy.PauseFixed + time.Microsecond, 50 * time.Millisecond} {
			t.Run(name+"/"+budget.String(), func(t *testing.T) {
				w := newWorld(t, uint64(budget)+uint64(len(name)))
				g := newGuest(w, 3)
				w.opts.Live, w.opts.Tracker, w.opts.Budget, w.opts.Still = g, tracker(g), budget, true
				go g.run()
				receipt, err := Push(t.Context(), slow{w.st}, w.src, w.opts)
				if err != nil {
					t.Fatal(err)
				}
				g.check(t, w, receipt)
				if n := len(receipt.Passes); !g.paused || n == 0 || n > mostPasses+1 || budget == 0 && n != 1 ||
					budget > 0 && n < 2 {
					t.Errorf("paused %v, passes %+v", g.paused, receipt.Passes)
				}
				if failed := receipt.Untracked != ""; failed &&
					!slices.Contains([]string{"fails first", "fails second", "fails at last", "fails at third"}, name) {
					t.Errorf("untracked: %s", receipt.Untracked)
				}
			})
		}
	}
}

// check wants the snapshot to be what the files are now, and not too much to be fetched.
func (g *guest) check(t *testing.T, w *world, receipt Receipt) {
	t.Helper()
	r := w.restore(t, receipt.Digest)
	if sumFile(t, r.ram) != sumFile(t, g.ram) {
		t.Error("RAM differs")
	}
	if sumFile(t, r.disk) != sumFile(t, g.disk) {
		t.Error("the disk differs")
	}
	if string(r.snap.Config.Resume) != g.resume {
		t.Errorf("resume is %s", r.snap.Config.Resume)
	}
	x := r.snap.index
	used := make([]uint16, len(x.Frames))
	for _, s := range x.Spaces {
		for _, run := range s.Runs {
			for slot := run.Slot; slot < run.Slot+run.Count; slot++ {
				used[run.Frame] |= 1 << slot
			}
		}
	}
	var stored, live uint64
	for _, p := range x.Packs {
		stored += p.Size
	}
	for i := range x.Frames {
		f := &frame{Frame: x.Frames[i], slots: used[i], pack: &pack{}}
		f.count()
		live += f.pack.live
	}
	if stored*100 > live*(100+mostDead)+stored/10 { // whole packs are packed anew, and rounding
		t.Errorf("%d bytes to fetch for %d", stored, live)
	}
}

// The second capture of a VM, tracked or not, refers to what the first one has.
func TestLiveWithParent(t *testing.T) {
	w := newWorld(t, 21)
	first, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	r := w.restore(t, first.Digest)
	w.src.Spaces[0].File, w.src.Spaces[1].File = r.ram, r.disk
	w.opts.Ref.Operation = "op2"
	if w.opts.Parent, err = OpenTable(r.table); err != nil {
		t.Fatal(err)
	}
	g := newGuest(w, 5)
	w.opts.Live, w.opts.Tracker, w.opts.Budget, w.opts.Still = g, &model{guest: g, between: true}, 50*time.Millisecond,
		true
	go g.run()
	second, err := Push(t.Context(), slow{w.st}, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	r = w.restore(t, second.Digest)
	if sumFile(t, r.ram) != sumFile(t, g.ram) || sumFile(t, r.disk) != sumFile(t, g.disk) {
		t.Error("the restored VM differs")
	}
	if second.Figures.New >= first.Figures.New {
		t.Errorf("new bytes: %d of %d", second.Figures.New, first.Figures.New)
	}
}

// Pages that keep changing are left for the pause, those that do not are looked at once.
func TestLiveLeavesHotPages(t *testing.T) {
	w := newWorld(t, 22)
	g := newGuest(w, 6)
	m := &model{guest: g, between: true}
	w.opts.Live, w.opts.Tracker, w.opts.Still = g, m, true
	w.opts.Budget = precopy.PauseFixed // nothing fits it
	close(g.stopped)
	// A guest in step with the passes: each finds the same pages changed, fewer each time.
	n := 512
	w.opts.Tracker = stepped{m, func() {
		for page := range n {
			g.write(int64(page), randomBytes(g.rng, format.PageSize))
		}
		n = n * 7 / 10
	}}
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	g.check(t, w, receipt)
	var left uint64
	for _, p := range receipt.Passes {
		left += p.Left
	}
	if left == 0 || len(receipt.Passes) < 4 {
		t.Errorf("passes %+v", receipt.Passes)
	}
	if receipt.Dead == 0 {
		t.Error("pages were sent again, and nothing is dead")
	}
}

// A disk is looked at again whatever writes to it between two looks, and whatever its time of modification says
// then. It is looked at in whole pages, in its last one, with holes, up to the pause.
func TestLiveDisk(t *testing.T) {
	w := newWorld(t, 25)
	g := newGuest(w, 8)
	close(g.stopped)
	st, err := g.disk.Stat()
	if err != nil {
		t.Fatal(err)
	}
	size := st.Size()
	change := []func(){
		func() {},
		func() { _, err = g.disk.WriteAt(randomBytes(g.rng, 3*format.PageSize), 5*format.PageSize) },
		func() { _, err = g.disk.WriteAt([]byte{7}, size-1) },
		func() {
			err = unix.Fallocate(int(g.disk.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 6*format.PageSize,
				8192+512)
		},
		func() { _, err = g.disk.WriteAt(make([]byte, format.PageSize), 5*format.PageSize) },
	}
	steps := 0
	step := func() {
		change[steps%len(change)]()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(g.disk.Name(), st.ModTime(), st.ModTime()); err != nil { // as if it had not been written
			t.Fatal(err)
		}
		settle(t, g.disk)
		steps++
	}
	n := 512
	w.opts.Live, w.opts.Still, w.opts.Budget = pausing{g, step}, true, precopy.PauseFixed // nothing fits it
	w.opts.Tracker = stepped{&model{guest: g, between: true}, func() {
		step()
		for page := range n {
			g.write(int64(page), randomBytes(g.rng, format.PageSize))
		}
		n = n * 7 / 10
	}}
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	r := w.restore(t, receipt.Digest)
	if sumFile(t, r.disk) != sumFile(t, g.disk) || sumFile(t, r.ram) != sumFile(t, g.ram) {
		t.Error("the restored VM differs")
	}
	if steps <= len(change) {
		t.Errorf("%d steps, passes %+v", steps, receipt.Passes)
	}
}

// settle waits until the times of a file tell whether it is written to.
// settle waits until a write to f from here on gives it another time.
func settle(t *testing.T, f *os.File) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		settled, err := precopy.Settled(f)
		if err != nil || time.Since(begun) > 10*time.Second {
			t.Fatalf("%s does not settle: %v", f.Name(), err)
		}
		if settled {
			return
		}
	}
}

// pausing changes something at the last moment.
type pausing struct {
	*guest
	before func()
}

func (p pausing) Pause(ctx context.Context) error {
	p.before()
	return p.guest.Pause(ctx)
}

type stepped struct {
	*model
	before func()
}

func (s stepped) Next(last bool, written func(offset, end int64)) (bool, error) {
	if s.calls > 0 && !last {
		s.before()
	}
	return s.model.Next(last, written)
}

// A VM that cannot be paused is an error of its own, and no manifest is written.
func TestLivePauseFails(t *testing.T) {
	w := newWorld(t, 23)
	g := newGuest(w, 7)
	g.fail = errdefs.ErrUnavailable
	w.opts.Live, w.opts.Budget = g, 50*time.Millisecond
	go g.run()
	defer func() { close(g.stop); <-g.stopped }()
	if _, err := Push(t.Context(), w.st, w.src, w.opts); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
	if _, err := w.st.Stat(t.Context(), store.Manifest(w.opts.Ref.Tag())); !errdefs.IsNotFound(err) {
		t.Errorf("manifest: %v", err)
	}
}
