package snapshot

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"godwit.dev/godwit/snapshot/format"
)

// That a VM wants nothing for a moment is told while it is so, and not while a page is on its way.
func TestSettled(t *testing.T) {
	patience := quick
	patience.Idle, patience.LongestIdle = 80*time.Millisecond, time.Hour
	w := newWorld(t, 66)
	_, s := w.stored(t)
	synctest.Test(t, func(t *testing.T) {
		st := &stalled{Store: w.st, asked: make(chan struct{}), goOn: make(chan struct{})}
		s.store = st
		ram, here, told := newLazyRAM(t), false, 0
		go ram.touch(t.Context(), int64(s.index.Spaces[0].Runs[0].Page)*format.PageSize)
		go func() {
			<-st.asked
			time.Sleep(time.Second)
			if told > 0 {
				t.Error("it has settled while it waits for a page")
			}
			here = true
			close(st.goOn)
		}()
		err := s.FillWaiting(t.Context(), "ram0", ram, FillOptions{patience: patience, Progress: func(p Progress) {
			if p.Settled {
				told++
			}
		}}, func(context.Context) error { return nil })
		if err != nil || !here || told < 2 || told > 8 {
			t.Errorf("told %d times in eight, %v", told, err)
		}
	})
}
