package precopy

import (
	"testing"
	"time"
)

// Passes before the pause end when the rest fits its budget, or is more than eight tenths
// of what it was before.
func TestEnough(t *testing.T) {
	p := &Precopy{work: make([]Worker, 1)}
	page := func(n int) time.Duration { return PauseFixed + time.Duration(n)*pausePerPage }
	for _, tt := range []struct {
		rest, before uint64
		want         bool
	}{
		{10, 0, true}, {10, 11, true}, {0, 0, true}, // it fits
		{11, 0, false},                     // the first look: there is nothing to compare with
		{80, 100, false}, {79, 100, false}, // it shrinks
		{81, 100, true}, {100, 100, true}, {500, 100, true},
	} {
		if got := p.enough(tt.rest, tt.before, page(10)); got != tt.want {
			t.Errorf("%d pages are left of %d: enough is %v", tt.rest, tt.before, got)
		}
	}
}

// Where the pause waits for what is sent, the estimate has the pace of the passes so far.
func TestEstimateSends(t *testing.T) {
	p := &Precopy{work: make([]Worker, 2), o: Options{Sends: true}}
	const pages = 1000
	p.note(Count{Looked: pages, Changed: pages}, passFixed+pages*pausePerPage/2+pages*10*time.Microsecond)
	want := PauseFixed + 100*pausePerPage/2 + 100*10*time.Microsecond
	if got := p.estimate(100); got < want-time.Microsecond || got > want+time.Microsecond {
		t.Errorf("estimated %v, want %v", got, want)
	}
}
