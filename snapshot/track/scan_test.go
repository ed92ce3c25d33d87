package track

import (
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A scan in parts tells what one of everything would: each page once, whatever core finds it, and
// in the pause again and again, as nothing is armed then.
func TestScanInParts(t *testing.T) {
	part := partSpan
	partSpan = tableSpan
	defer func() { partSpan = part }()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	const tables, perTable = 9, tableSpan / pageSize
	f, err := os.CreateTemp("/dev/shm", "ram")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := f.Truncate(tables*tableSpan - tableSpan/2); err != nil {
		t.Fatal(err)
	}
	area, err := unix.Mmap(-1, 0, (tables+1)*tableSpan, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(area)
	ram := mapAt(t, f, area)[:tables*tableSpan-tableSpan/2]
	pages := len(ram) / pageSize
	var data []int
	for page := range pages {
		if page%3 > 0 {
			ram[page*pageSize] = 1
			data = append(data, page)
		}
	}
	tracker := inProcess(t, f)
	next := func(last bool) (told []int) {
		t.Helper()
		known, err := tracker.Next(last, func(offset, end int64) {
			for at := offset; at < end; at += pageSize {
				told = append(told, int(at/pageSize))
			}
		})
		if err != nil || !known {
			t.Fatalf("known %v, %v", known, err)
		}
		slices.Sort(told)
		return told
	}
	if _, err := tracker.Next(false, nil); err != nil {
		t.Fatal(err)
	}
	for round := range 8 {
		var want []int
		for range 50 + 100*round {
			page := data[rand.N(len(data))]
			ram[page*pageSize]++
			want = append(want, page)
		}
		slices.Sort(want)
		want = slices.Compact(want)
		for range 1 + round%2 { // the last interval goes on
			if got := next(round%2 == 1); !slices.Equal(got, want) {
				t.Fatalf("round %d: %d pages were written, told are %d", round, len(want), len(got))
			}
		}
		if round%2 == 1 {
			next(false)
		}
	}
}
