package snapshot

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/store"
)

// tired is a store that has had enough at its n-th Put: that one and all after it fail. It counts the bytes of
// packs that it took.
type tired struct {
	store.Store
	fail int

	mu   sync.Mutex
	puts int
	took uint64
}

func (s *tired) Put(ctx context.Context, o store.Object, c store.Content) error {
	s.mu.Lock()
	s.puts++
	over := s.fail > 0 && s.puts >= s.fail
	s.mu.Unlock()
	if over {
		return errdefs.ErrUnavailable
	}
	err := s.Store.Put(ctx, o, c)
	if err == nil && !o.Manifest && c.Size > format.MaxFrame {
		s.mu.Lock()
		s.took += uint64(c.Size)
		s.mu.Unlock()
	}
	return err
}

const noisySize = 19 << 20

// noisy is a world whose RAM takes two packs and does not shrink, with pages that are there twice.
func noisy(t *testing.T, seed uint64) *world {
	w := newWorld(t, seed)
	noise := randomBytes(rand.New(rand.NewPCG(seed, 3)), noisySize)
	copy(noise[18<<20:], noise[:256<<10])
	w.src.Spaces[0].File, w.opts.Spec.Memory = blobFile(t, "ram", noise), uint64(len(noise))
	w.src.State, w.src.Disks, w.opts.Spec.Disks = blobFile(t, "state", []byte("state")), nil, w.opts.Spec.Disks[1:]
	w.st = &memory{m: map[string][]byte{}}
	w.opts.Finished, w.opts.Repository = emptyFile(t, "finished"), "repo/uid1"
	return w
}

// pushed is a push to what is left of a store, and what that took.
func (w *world) pushed(t *testing.T, fail int) (Receipt, *tired, error) {
	t.Helper()
	st := &tired{Store: w.st, fail: fail}
	o := w.opts
	receipt, err := Push(t.Context(), st, w.src, o)
	if fail > 0 && err == nil {
		t.Fatalf("put %d fails, and the push does not", fail)
	}
	if fail == 0 && err != nil {
		t.Fatal(err)
	}
	return receipt, st, err
}

// Wherever a push fails, the one after it sends no pack again that the store has, and
// what it makes is exact.
func TestGoesOnAfterAFailedPush(t *testing.T) {
	count := noisy(t, 41)
	count.opts.Finished = nil
	whole, all, _ := count.pushed(t, 0)
	for name, tt := range map[string]struct {
		keys Keys
		from int
	}{"plain": {from: 3}, "sealed": {Keys{Locks: seal.Locks{Keys: []seal.Secret{secret(5)}}}, all.puts}} {
		t.Run(name, func(t *testing.T) {
			most := uint64(0)
			for fail := tt.from; fail <= all.puts; fail++ {
				w := noisy(t, 41)
				w.opts.Keys = tt.keys
				_, first, _ := w.pushed(t, fail)
				w.opts.Ref.Attempt = 2
				receipt, second, _ := w.pushed(t, 0)
				most = max(most, receipt.Again)
				// The pages that are there twice may go twice: which of them is met first differs.
				if slack := uint64(512 << 10); first.took+second.took > whole.Figures.Pushed+slack {
					t.Errorf("put %d fails: %d and %d bytes of packs, of %d in all", fail, first.took, second.took,
						whole.Figures.Pushed)
				}
				if (first.took > 0) != (receipt.Again > 0) || receipt.Again > first.took {
					t.Errorf("put %d fails: %d bytes were taken, and %d used again", fail, first.took, receipt.Again)
				}
				w.restore(t, receipt.Digest)
			}
			if most < noisySize-1<<20 {
				t.Errorf("of a push that failed at its manifest %d bytes are used again", most)
			}
		})
	}
}

// A third push goes on with what both before it have stored. Packs that are gone are sent again. Pages that have
// changed since are what they are now.
func TestGoesOnWithWhatIsThere(t *testing.T) {
	w := noisy(t, 42)
	_, first, _ := w.pushed(t, 4)
	_, second, _ := w.pushed(t, 3)
	for name, data := range w.st.(*memory).m { // one pack is collected
		if len(data) > 15<<20 {
			delete(w.st.(*memory).m, name)
			first.took -= uint64(len(data))
			break
		}
	}
	rng := rand.New(rand.NewPCG(42, 42))
	for range 50 {
		page := make([]byte, format.PageSize)
		if rng.IntN(3) > 0 {
			page = randomBytes(rng, format.PageSize)
		}
		if _, err := w.src.Spaces[0].File.WriteAt(page,
			int64(rng.IntN(noisySize/format.PageSize))*format.PageSize); err != nil {
			t.Fatal(err)
		}
	}
	receipt, _, _ := w.pushed(t, 0)
	if have := first.took + second.took; receipt.Again == 0 || receipt.Again > have ||
		receipt.Figures.New > noisySize+1<<20-receipt.Again {
		t.Errorf("%d bytes are used again of %d, %d are new", receipt.Again, have, receipt.Figures.New)
	}
	w.restore(t, receipt.Digest)
}

// With a parent the sums are by that one's seed. A checkpoint that goes on with a failed one has the pages of both
// in its own table.
func TestGoesOnWithAParent(t *testing.T) {
	w := noisy(t, 43)
	w.opts.Next = emptyFile(t, "table")
	w.pushed(t, 0)
	rng := rand.New(rand.NewPCG(43, 43))
	if _, err := w.src.Spaces[0].File.WriteAt(randomBytes(rng, 17<<20), 1<<20); err != nil {
		t.Fatal(err)
	}
	parent := func(f *os.File) {
		var err error
		if w.opts.Parent, err = OpenTable(f); err != nil {
			t.Fatal(err)
		}
	}
	table := w.opts.Next
	w.opts.Ref.Operation, w.opts.Next = "op2", emptyFile(t, "next")
	parent(table)
	_, first, _ := w.pushed(t, 4) // state, two packs, then what is after them
	parent(table)
	receipt, second, _ := w.pushed(t, 0)
	if first.took == 0 || receipt.Again == 0 || first.took+second.took > 18<<20 {
		t.Errorf("%d bytes, then %d: %d are used again", first.took, second.took, receipt.Again)
	}
	w.restore(t, receipt.Digest)
	w.opts.Ref.Operation = "op3"
	parent(w.opts.Next)
	receipt, third, _ := w.pushed(t, 0) // its list is still there, and of packs that the parent has
	// The 2 MiB that the first one stored lie in packs that are dead but for them.
	if third.took > 3<<20 || receipt.Again != 0 || receipt.Figures.New > 2<<20 {
		t.Errorf("nothing has changed: %d bytes are sent, %d new, %d used again", third.took, receipt.Figures.New,
			receipt.Again)
	}
	w.restore(t, receipt.Digest)
}

// A VM that runs, and whose pages change all the time, is what it was in its pause.
func TestLiveGoesOn(t *testing.T) {
	for fail := 2; fail < 8; fail++ {
		w := newWorld(t, 44)
		w.opts.Finished, w.opts.Repository = emptyFile(t, "finished"), "repo/uid1"
		var again uint64
		for attempt, n := range []int{fail, 0} {
			g := newGuest(w, uint64(fail*2+attempt))
			w.opts.Live, w.opts.Budget = g, 50*time.Millisecond
			go g.run()
			st := &tired{Store: w.st, fail: n}
			receipt, err := Push(t.Context(), st, w.src, w.opts)
			if !g.paused {
				close(g.stop)
			}
			<-g.stopped
			if (err != nil) != (n > 0) {
				t.Fatalf("put %d: %v", n, err)
			}
			if again = receipt.Again; err == nil {
				w.restore(t, receipt.Digest)
			}
		}
		t.Logf("put %d fails: %d bytes are used again", fail, again)
	}
}

// A list that is not whole, not of this VM, too old, of tomorrow or altered is as none, up to
// where it is right: what follows is exact, and nothing that it says is used.
func TestListOfFinishedPacksIsWrong(t *testing.T) {
	w := noisy(t, 45)
	_, first, _ := w.pushed(t, 5)
	list, err := io.ReadAll(io.NewSectionReader(w.opts.Finished, 0, mostFinished))
	if err != nil || first.took == 0 || len(list) < 1000 {
		t.Fatal(len(list), err)
	}
	about, err := (&push{o: w.opts, config: &Config{Spaces: spacesOf(w)}}).aboutFinished()
	if err != nil {
		t.Fatal(err)
	}
	read := func(data []byte, now time.Time) int {
		table, end := parseFinished(data, about, spacesOf(w), now)
		if (table == nil) != (end == 0) || end > int64(len(data)) {
			t.Errorf("a list of %d bytes ends at %d: %v", len(data), end, table != nil)
		}
		if table == nil {
			return 0
		}
		return len(table.packs)
	}
	whole := read(list, time.Now())
	if whole == 0 {
		t.Fatal("it is not read as it is")
	}
	for name, now := range map[string]time.Time{"too old": time.Now().Add(finishedFor + time.Minute),
		"of tomorrow": time.Now().Add(-time.Minute)} {
		if n := read(list, now); n != 0 {
			t.Errorf("%s: %d packs", name, n)
		}
	}
	// another VM's
	for _, o := range []Options{{Repository: "repo/uid2", Ref: w.opts.Ref}, {Repository: w.opts.Repository}} {
		other, err := (&push{o: o, config: &Config{Spaces: spacesOf(w)}}).aboutFinished()
		if table, _ := parseFinished(list, other, spacesOf(w), time.Now()); table != nil || err != nil {
			t.Errorf("of %s, %s: it is read, %v", o.Repository, o.Ref.UID, err)
		}
	}
	for at := 0; at < len(list); at += 1 + at/7 {
		harmed := bytes.Clone(list)
		harmed[at] ^= 1
		if n := read(harmed, time.Now()); n >= whole {
			t.Errorf("byte %d is another: %d packs of %d", at, n, whole)
		}
		if n := read(list[:at], time.Now()); n >= whole {
			t.Errorf("cut at %d: %d packs of %d", at, n, whole)
		}
	}
	for name, other := range map[string]func(*world){
		"altered":      func(w *world) { _, _ = w.opts.Finished.WriteAt([]byte("x"), finishedHeaderN+50) },
		"no file":      func(w *world) { w.opts.Finished.Close() },
		"sealed since": func(w *world) { w.opts.Keys = Keys{Locks: seal.Locks{Keys: []seal.Secret{secret(5)}}} },
	} {
		o := *w
		o.opts.Finished = blobFile(t, "finished", list)
		other(&o)
		receipt, _, _ := o.pushed(t, 0)
		if receipt.Again != 0 {
			t.Errorf("%s: %d bytes are used again", name, receipt.Again)
		}
		o.restore(t, receipt.Digest)
	}
}

func spacesOf(w *world) (list []SpaceInfo) {
	for _, s := range w.src.Spaces {
		size, _ := fileSize(s.File)
		list = append(list, SpaceInfo{Name: s.Name, Disk: s.Disk, Size: size})
	}
	return list
}

// The list is bounded: what does not fit is not told of, and a push fails for no want of it.
func TestListOfFinishedPacksIsBounded(t *testing.T) {
	l := &finished{file: emptyFile(t, "finished")}
	l.begin(7)
	l.off = mostFinished - 100
	l.add(&pack{Pack: format.Pack{Size: 10}},
		[]*frame{{Frame: format.Frame{Pages: 1}, places: []place{{area: precopy.NewArea(Space{}, 0, 0)}}}})
	if !l.full || l.off != mostFinished-100 {
		t.Errorf("it ends at %d, full %v", l.off, l.full)
	}
	if size, err := fileSize(l.file); err != nil || size != finishedHeaderN {
		t.Errorf("%d bytes, %v", size, err)
	}
}

// A page that is known at its own place alone is not found by its contents, and hides no page that is proved.
func TestUnprovedPagesAreNotFound(t *testing.T) {
	page := bytes.Repeat([]byte{7}, format.PageSize)
	table := &Table{key: [32]byte{1}}
	h := pagetable.NewHasher(table.key)
	index := &format.Index{Packs: []format.Pack{{Size: format.MaxFrame}},
		Frames: []format.Frame{{Stored: format.PageSize, Pages: 1}, {Offset: format.PageSize, Stored: format.PageSize,
			Pages: 1}}}
	table.entries = []pagetable.Entry{{Sum: 5, Frame: 0}, {Sum: 6, Frame: 0}, {Sum: 5, Frame: 1, Hash: h.Sum(page)}}
	if err := table.build(index, make([]pagetable.PackKey, 1)); err != nil {
		t.Fatal(err)
	}
	table.packs[0].dropped = false
	if f, _ := table.find(&h, 6, page); f != nil {
		t.Error("a page is found by its sum alone")
	}
	if f, _ := table.find(&h, 5, page); f != &table.frames[1] {
		t.Error("one that is proved is hidden")
	}
}
