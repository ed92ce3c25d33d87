package snapshot

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/format"
)

// A glance in the pause finds what a look at all of RAM would, by what the tracker has told
// alone; and it knows when somebody has made or punched pages of which nobody has told.
func TestGlance(t *testing.T) {
	const pages = 4 * blockPages
	one := make([]byte, format.PageSize)
	one[0] = 1
	punch := func(f *os.File, page int64) error {
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, page*format.PageSize, format.PageSize)
	}
	write := func(f *os.File, page int64) error {
		_, err := f.WriteAt(one, page*format.PageSize)
		return err
	}
	for name, c := range map[string]struct {
		do    func(f *os.File) error
		told  []int64
		knows bool
		lost  []int
	}{
		"nothing":                {knows: true},
		"written":                {do: func(f *os.File) error { return write(f, 5) }, told: []int64{5}, knows: true},
		"new":                    {do: func(f *os.File) error { return write(f, blockPages+9) }, told: []int64{blockPages + 9}, knows: true},
		"new in an empty block":  {do: func(f *os.File) error { return write(f, pages-1) }, told: []int64{pages - 1}, knows: true},
		"new, untold":            {do: func(f *os.File) error { return write(f, blockPages+9) }},
		"punched":                {do: func(f *os.File) error { return punch(f, 5) }, told: []int64{5}, knows: true, lost: []int{5}},
		"punched, untold":        {do: func(f *os.File) error { return punch(f, 5) }},
		"punched beside another": {do: func(f *os.File) error { return punch(f, 6) }, told: []int64{5}},
		"a run, one punched":     {do: func(f *os.File) error { return punch(f, 9) }, told: []int64{7, 8, 9, 10, 11}, knows: true, lost: []int{9}},
	} {
		t.Run(name, func(t *testing.T) {
			fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), "ram")
			defer f.Close()
			if err := f.Truncate(pages * format.PageSize); err != nil {
				t.Fatal(err)
			}
			for page := range int64(2 * blockPages) {
				if page%8 < 7 && page != blockPages+9 {
					if err := write(f, page); err != nil {
						t.Fatal(err)
					}
				}
			}
			a := newArea(Space{Name: "ram0", File: f}, pages*format.PageSize)
			if err := a.warm(); err != nil {
				t.Fatal(err)
			}
			defer a.close()
			if knows, err := a.glance(false, nil); knows || err != nil {
				t.Fatalf("before the first look: %v, %v", knows, err)
			}
			if err := a.look(nil); err != nil {
				t.Fatal(err)
			}
			for i := range a.blocks {
				a.blocks[i] = &block{known: a.data[i]}
			}
			if c.do != nil {
				if err := c.do(f); err != nil {
					t.Fatal(err)
				}
			}
			for _, page := range c.told {
				a.written(page*format.PageSize, (page+1)*format.PageSize)
			}
			var lost []int
			knows, err := a.glance(false, func(_ *area, number int, pages *mask) error {
				return pages.runs(func(from, to int) error {
					for i := from; i < to; i++ {
						lost = append(lost, number*blockPages+i)
					}
					return nil
				})
			})
			if err != nil || knows != c.knows || !slices.Equal(lost, c.lost) {
				t.Fatalf("knows %v, lost %v, %v", knows, lost, err)
			}
			found := slices.Clone(a.data)
			if err := a.look(nil); err != nil {
				t.Fatal(err)
			}
			if knows && !slices.Equal(found, a.data) {
				t.Errorf("found %v, a look finds %v", found, a.data)
			}
		})
	}
}

// Of a VM that runs more pages may have come since the tracker told: they are told of next time. A
// glance knows nothing where one has gone untold, nor where pages stay untold.
func TestGlanceWhileItRuns(t *testing.T) {
	w := newWorld(t, 53)
	ram := w.src.Spaces[0].File
	a := newArea(w.src.Spaces[0], ramSize)
	defer a.close()
	if err := a.look(nil); err != nil {
		t.Fatal(err)
	}
	var holes []int64
	for page := range int64(ramPages) {
		if !a.data[page/blockPages].has(int(page % blockPages)) {
			holes = append(holes, page)
		}
	}
	glance := func(what string, want bool) {
		t.Helper()
		if knows, err := a.glance(true, nil); err != nil || knows != want {
			t.Errorf("%s: knows %v, %v", what, knows, err)
		}
	}
	write := func(page int64) {
		if _, err := ram.WriteAt([]byte{1}, page*format.PageSize); err != nil {
			t.Fatal(err)
		}
	}
	write(holes[0])
	glance("new, not told yet", true)
	a.written(holes[0]*format.PageSize, (holes[0]+1)*format.PageSize)
	glance("told", true)
	if page := int(holes[0]); !a.data[page/blockPages].has(page % blockPages) {
		t.Error("a page that was told of is not found")
	}
	write(holes[1])
	glance("another", true)
	glance("never told", false)
	if err := a.look(nil); err != nil {
		t.Fatal(err)
	}
	glance("looked", true)
	if err := unix.Fallocate(int(ram.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, holes[0]*format.PageSize, format.PageSize); err != nil {
		t.Fatal(err)
	}
	glance("gone", false)
}
