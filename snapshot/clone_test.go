package snapshot

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
)

// copying has the n-th clone fail, from 1 on; the others are copies, holes and all. 0: none fails.
func copying(t *testing.T, n int, fail error) (calls *int) {
	t.Helper()
	calls = new(int)
	was := precopy.CloneFile
	t.Cleanup(func() { precopy.CloneFile = was })
	precopy.CloneFile = func(to, from int) error {
		if *calls++; *calls == n {
			return fail
		}
		a, b := os.NewFile(dup(t, from), "from"), os.NewFile(dup(t, to), "to")
		defer a.Close()
		defer b.Close()
		st, err := a.Stat()
		if err != nil {
			return err
		}
		err = precopy.Extents(a, st.Size(), func(offset, end int64) error {
			data := make([]byte, end-offset)
			if _, err := a.ReadAt(data, offset); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			_, err := b.WriteAt(data, offset)
			return err
		})
		return errors.Join(err, b.Truncate(st.Size()))
	}
	return calls
}

func dup(t *testing.T, fd int) uintptr {
	t.Helper()
	n, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	return uintptr(n)
}

// A disk that is written to is cloned in the pause and read after it. It is of the same instant as RAM, whatever
// the VM writes meanwhile. A clone that fails, before the pause or in it, costs a longer pause, and that is said.
func TestCheckpointClonesDisks(t *testing.T) {
	for _, tracker := range []func(*guest) Tracker{
		func(*guest) Tracker { return nil },
		func(g *guest) Tracker { return &model{guest: g, between: true} },
	} {
		for fails, why := range map[int]string{
			0: "", 1: "its file system has no reflink", 2: "it cannot be cloned: no space left on device",
		} {
			t.Run(fmt.Sprint(fails), func(t *testing.T) {
				w := newWorld(t, 61)
				w.src.Spaces[1].Clone = emptyFile(t, "clone")
				fail := error(unix.EOPNOTSUPP)
				if fails == 2 {
					fail = unix.ENOSPC
				}
				calls := copying(t, fails, fail)
				receipt, then, _ := w.goesOn(t, 6, tracker)
				w.holds(t, receipt.Digest, then)
				want := map[int]int{0: 2, 1: 1, 2: 2}[fails]
				if *calls != want {
					t.Errorf("%d clones, not %d", *calls, want)
				}
				switch {
				case fails == 0 && len(receipt.Disks) > 0:
					t.Errorf("read in the pause: %+v", receipt.Disks)
				case fails > 0 && (len(receipt.Disks) != 1 || receipt.Disks[0].Why != why || receipt.Disks[0].Read == 0 ||
					receipt.Disks[0].Disk != "rw"):
					t.Errorf("read in the pause: %+v, wanted %q", receipt.Disks, why)
				}
			})
		}
	}
}

// A disk without a write since the last look is neither cloned nor read in the pause. Pages that were left for the
// pause are read.
func TestQuietDiskIsNotCloned(t *testing.T) {
	for busy, want := range map[bool]int{false: 1, true: 2} { // one is made before the pause
		t.Run(fmt.Sprintf("busy %v", busy), func(t *testing.T) {
			w := newWorld(t, 62)
			w.src.Spaces[1].Clone = emptyFile(t, "clone")
			calls := copying(t, 0, nil)
			g := newGuest(w, 7)
			close(g.stopped)
			settle(t, g.disk)
			last := func() {}
			if busy {
				last = func() {
					if _, err := g.disk.WriteAt(randomBytes(g.rng, 3*format.PageSize), 700); err != nil {
						t.Error(err)
					}
				}
			}
			w.opts.Live, w.opts.Still, w.opts.Budget = pausing{g, last}, true, 50*time.Millisecond
			receipt, err := Push(t.Context(), w.st, w.src, w.opts)
			if err != nil {
				t.Fatal(err)
			}
			g.check(t, w, receipt)
			if *calls != want || len(receipt.Disks) > 0 {
				t.Errorf("%d clones, not %d; %+v", *calls, want, receipt.Disks)
			}
		})
	}
}

// A push that packs pages anew after the pause reads those of a disk from its clone.
func TestCompactionReadsTheClone(t *testing.T) {
	defer func(n int) { mostPacks = n }(mostPacks)
	mostPacks = 1
	w := newWorld(t, 63)
	first, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	r := w.restore(t, first.Digest)
	w.src.Spaces[0].File, w.src.Spaces[1].File, w.src.Spaces[1].Clone = r.ram, r.disk, emptyFile(t, "clone")
	copying(t, 0, nil)
	if w.opts.Parent, err = OpenTable(r.table); err != nil {
		t.Fatal(err)
	}
	w.opts.Ref.Operation = "op2"
	rng := rand.New(rand.NewPCG(9, 9))
	g := newGuest(w, 8)
	close(g.stopped)
	w.opts.Live, w.opts.Still, w.opts.Budget = pausing{g, func() {
		_ = writeAt(g.disk, randomBytes(rng, 100_000), 100_000)
	}}, true, 50*time.Millisecond
	var then instant
	w.opts.Captured = func() {
		then = instant{sumFile(t, g.ram), sumFile(t, g.disk)}
		_ = writeAt(g.disk, randomBytes(rng, 1<<20), 0)
	}
	second, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	if second.Moved == 0 {
		t.Error("nothing was packed anew: the test shows nothing")
	}
	w.holds(t, second.Digest, then)
}

// What the guest trims while its disk is captured is not in the snapshot, and a sparse
// disk comes back sparse, cloned or not.
func TestTrimmedBlocksVanish(t *testing.T) {
	for _, cloned := range []bool{true, false} {
		t.Run(fmt.Sprintf("cloned %v", cloned), func(t *testing.T) {
			w := newWorld(t, 64)
			disk := emptyFile(t, "rw")
			rng := rand.New(rand.NewPCG(3, 3))
			const size, trim, more = 12 << 20, 1 << 20, 10 << 20
			for _, err := range []error{disk.Truncate(size), writeAt(disk, randomBytes(rng, 2<<20), 0),
				writeAt(disk, randomBytes(rng, 64<<10), more)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			w.src.Spaces[1].File = disk
			w.opts.Spec.Disks[1].Size = size
			copying(t, map[bool]int{false: 1}[cloned], unix.EOPNOTSUPP)
			w.src.Spaces[1].Clone = emptyFile(t, "clone")
			g := newGuest(w, 9)
			close(g.stopped)
			w.opts.Live, w.opts.Still, w.opts.Budget = pausing{g, func() {
				if err := unix.Fallocate(int(disk.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096,
					trim); err != nil {
					t.Error(err)
				}
			}}, true, 50*time.Millisecond
			receipt, err := Push(t.Context(), w.st, w.src, w.opts)
			if err != nil {
				t.Fatal(err)
			}
			r := w.restore(t, receipt.Digest)
			if sumFile(t, r.disk) != sumFile(t, disk) {
				t.Error("the disk differs")
			}
			i := slices.IndexFunc(r.snap.Config.Spaces, func(s SpaceInfo) bool { return s.Disk == "rw" })
			var pages uint64
			for _, run := range r.snap.index.Spaces[i].Runs {
				pages += uint64(run.Count)
			}
			if want := uint64(2<<20-trim+64<<10) / format.PageSize; pages != want {
				t.Errorf("%d pages of the disk are stored, not %d", pages, want)
			}
			var st unix.Stat_t
			if err := unix.Fstat(int(r.disk.Fd()), &st); err != nil || st.Size != size || st.Blocks*512 > 2<<20 {
				t.Errorf("restored with %d bytes, %d of them allocated, %v", st.Size, st.Blocks*512, err)
			}
		})
	}
}

func writeAt(f *os.File, data []byte, at int64) error {
	_, err := f.WriteAt(data, at)
	return err
}
