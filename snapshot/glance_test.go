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
			if knows, err := a.glance(nil); knows || err != nil {
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
			knows, err := a.glance(func(_ *area, number int, pages *mask) error {
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
