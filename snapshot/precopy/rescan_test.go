package precopy

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func ignore(*Area, int, *Mask) error { return nil }

// sparse is RAM of so many pages: seven of eight pages of its first half have data.
func sparse(t *testing.T, pages int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "ram")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(pages * pageSize); err != nil {
		t.Fatal(err)
	}
	for page := range pages / 2 {
		if page%8 < 7 && page != BlockPages+9 {
			if _, err := f.WriteAt([]byte{1}, page*pageSize); err != nil {
				t.Fatal(err)
			}
		}
	}
	return f
}

// A rescan in the pause finds what a scan of all of RAM would, by what the tracker has told
// alone. It knows when pages were made or punched of which the tracker has not told.
func TestRescan(t *testing.T) {
	const pages = 4 * BlockPages
	one := make([]byte, pageSize)
	one[0] = 1
	punch := func(f *os.File, page int64) error {
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, page*pageSize, pageSize)
	}
	write := func(f *os.File, page int64) error {
		_, err := f.WriteAt(one, page*pageSize)
		return err
	}
	for name, c := range map[string]struct {
		do    func(f *os.File) error
		told  []int64
		knows bool
		lost  []int
	}{
		"nothing": {knows: true},
		"written": {do: func(f *os.File) error { return write(f, 5) }, told: []int64{5}, knows: true},
		"new": {do: func(f *os.File) error {
			return write(f, BlockPages+9)
		}, told: []int64{BlockPages + 9}, knows: true},
		"new in an empty block": {do: func(f *os.File) error {
			return write(f, pages-1)
		}, told: []int64{pages - 1}, knows: true},
		"new, untold": {do: func(f *os.File) error { return write(f, BlockPages+9) }},
		"punched": {do: func(f *os.File) error {
			return punch(f, 5)
		}, told: []int64{5}, knows: true, lost: []int{5}},
		"punched, untold":         {do: func(f *os.File) error { return punch(f, 5) }},
		"punched next to another": {do: func(f *os.File) error { return punch(f, 6) }, told: []int64{5}},
		"a run, one punched": {do: func(f *os.File) error {
			return punch(f, 9)
		}, told: []int64{7, 8, 9, 10, 11}, knows: true, lost: []int{9}},
	} {
		t.Run(name, func(t *testing.T) {
			f := sparse(t, pages)
			a := NewArea(Space{Name: "ram0", File: f}, 0, pages*pageSize)
			if err := a.open(); err != nil {
				t.Fatal(err)
			}
			defer a.close()
			if knows, err := a.rescan(false, ignore); knows || err != nil {
				t.Fatalf("before the first scan: %v, %v", knows, err)
			}
			if err := a.scan(ignore); err != nil {
				t.Fatal(err)
			}
			for i := range a.blocks {
				a.blocks[i] = &Block{known: a.data[i]}
			}
			if c.do != nil {
				if err := c.do(f); err != nil {
					t.Fatal(err)
				}
			}
			for _, page := range c.told {
				a.written(page*pageSize, (page+1)*pageSize)
			}
			var lost []int
			knows, err := a.rescan(false, func(_ *Area, number int, pages *Mask) error {
				return pages.Runs(func(from, to int) error {
					for i := from; i < to; i++ {
						lost = append(lost, number*BlockPages+i)
					}
					return nil
				})
			})
			if err != nil || knows != c.knows || !slices.Equal(lost, c.lost) {
				t.Fatalf("knows %v, lost %v, %v", knows, lost, err)
			}
			found := slices.Clone(a.data)
			if err := a.scan(ignore); err != nil {
				t.Fatal(err)
			}
			if knows && !slices.Equal(found, a.data) {
				t.Errorf("found %v, a scan finds %v", found, a.data)
			}
		})
	}
}

// Of a VM that runs more pages may have come since the tracker told: they are told of next time. A
// rescan knows nothing where one has gone untold, nor where pages stay untold.
func TestRescanWhileItRuns(t *testing.T) {
	const pages = 4 * BlockPages
	ram := sparse(t, pages)
	a := NewArea(Space{Name: "ram0", File: ram}, 0, pages*pageSize)
	if err := a.scan(ignore); err != nil {
		t.Fatal(err)
	}
	var holes []int64
	for page := range int64(pages) {
		if !a.data[page/BlockPages].Has(int(page % BlockPages)) {
			holes = append(holes, page)
		}
	}
	rescan := func(what string, want bool) {
		t.Helper()
		if knows, err := a.rescan(true, ignore); err != nil || knows != want {
			t.Errorf("%s: knows %v, %v", what, knows, err)
		}
	}
	write := func(page int64) {
		if _, err := ram.WriteAt([]byte{1}, page*pageSize); err != nil {
			t.Fatal(err)
		}
	}
	write(holes[0])
	rescan("new, not told yet", true)
	a.written(holes[0]*pageSize, (holes[0]+1)*pageSize)
	rescan("told", true)
	if page := int(holes[0]); !a.data[page/BlockPages].Has(page % BlockPages) {
		t.Error("a page that was told of is not found")
	}
	write(holes[1])
	rescan("another", true)
	rescan("never told", false)
	if err := a.scan(ignore); err != nil {
		t.Fatal(err)
	}
	rescan("looked", true)
	if err := unix.Fallocate(int(ram.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, holes[0]*pageSize,
		pageSize); err != nil {
		t.Fatal(err)
	}
	rescan("gone", false)
}
