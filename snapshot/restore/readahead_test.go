package restore

import (
	"os"
	"sync/atomic"
	"testing"

	"godwit.dev/godwit/snapshot/format"
)

// What is read for pages that are waited for grows with each time that a pack is wanted. It
// grows up to the pack's end or what is here. What is on its way already is read alone.
func TestReadAheadWindow(t *testing.T) {
	frames := make([]format.Frame, 103)
	for i := range frames {
		if i >= 100 {
			frames[i].Pack = 1
		}
	}
	index := &format.Index{Frames: frames}
	l := &postcopy{f: &filler{src: Source{Index: index}, plan: &plan{index: index}},
		here: make([]atomic.Bool, len(frames)), windows: map[int]*window{}}
	l.here[90].Store(true)
	for _, c := range []struct{ frame, first, end int }{
		{30, 30 - firstWindow, 30 + firstWindow},
		{20, 20, 21}, // on its way
		{45, 45, 46},
		{46, 46, 46 + 2*firstWindow}, // those before are on their way
		{13, 0, 46},                  // those from 46 on are; the begin of the pack
		{80, 46, 90},                 // that one is here
		{91, 91, 100},                // the end of the pack
		{20, 0, 90},                  // not on its way any more
		{101, 100, 103},              // of another pack
	} {
		if first, end := l.readAhead(c.frame); first != c.first || end != c.end {
			t.Errorf("frame %d is read with those from %d up to %d, want %d, %d", c.frame, first, end, c.first, c.end)
		}
	}
	for range 100 { // nothing grows for ever
		l.readAhead(75)
		l.readAhead(91)
	}
	if first, end := l.readAhead(60); first != 0 || end != 90 {
		t.Errorf("at last frame 60 is read with those from %d up to %d, want 0, 90", first, end)
	}
}

// What is asked for before a frame begins with one that is in use and ends with what is here.
func TestLacking(t *testing.T) {
	index := &format.Index{Frames: make([]format.Frame, 10), Spaces: []format.Space{{}}}
	for _, frame := range []uint32{0, 1, 2, 5, 6, 9} {
		index.Spaces[0].Runs = append(index.Spaces[0].Runs, format.Run{Page: uint64(frame), Frame: frame, Count: 1})
	}
	l := &postcopy{f: &filler{src: Source{Index: index}, plan: newPlan(index, make([]*os.File, 1), true)},
		here: make([]atomic.Bool, 10)}
	l.here[1].Store(true)
	for _, c := range []struct{ first, frame, want int }{{0, 9, 2}, {4, 9, 5}, {7, 9, 9}, {0, 2, 2}, {0, 1, 0}} {
		if got := l.lacking(c.first, c.frame); got != c.want {
			t.Errorf("before %d, from %d on: %d, want %d", c.frame, c.first, got, c.want)
		}
	}
}
