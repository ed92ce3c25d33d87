package engine

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

// failing is work that fails until then, and notes when it was tried.
type failing struct {
	begun, until time.Time
	tried        []time.Duration
}

func (f *failing) do(context.Context) error {
	f.tried = append(f.tried, time.Since(f.begun))
	if time.Now().Before(f.until) {
		return errdefs.ErrUnavailable
	}
	return nil
}

// runFor runs works for some time.
func runFor(t *testing.T, for_ time.Duration, fails ...time.Duration) (all []*failing) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), for_)
	defer cancel()
	var works []Work
	for i, d := range fails {
		f := &failing{begun: time.Now(), until: time.Now().Add(d)}
		all = append(all, f)
		works = append(works, Work{Name: string(rune('a' + i)), Do: f.do})
	}
	RunPeriodically(ctx, works)
	return all
}

// A round that failed is tried again soon and on its own, and not after a whole interval: a fleet
// whose controller was busy for a second does not wait for it.
func TestTendTriesAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 {
			all := runFor(t, 4*time.Minute, 2*time.Second, 0)
			failed, good := all[0].tried, all[1].tried
			at := slices.IndexFunc(failed, func(d time.Duration) bool { return d >= 2*time.Second })
			if failed[at] >= PeriodicInterval { // the fourth pause is 12 s at most
				t.Errorf("work that would succeed after 2 s is tried at %v", failed[:at+1])
			}
			if n := len(good); n < 15 || n > 18 {
				t.Errorf("work that never failed was done %d times in 4 minutes", n)
			}
		}
	})
}

// Work that fails for long is tried no more often than all work: a controller that is away is
// not asked by its whole fleet all the time.
func TestTendBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tried := runFor(t, 10*time.Minute, time.Hour)[0].tried
		if n := len(tried); n < 40 || n > 46 {
			t.Errorf("tried %d times in 10 minutes, want one each %v and a few at the start", n, PeriodicInterval)
		}
		for i := 8; i < len(tried); i++ {
			if pause := tried[i] - tried[i-1]; pause < PeriodicInterval/2 {
				t.Errorf("after %v it is tried again after %v", tried[i-1], pause)
			}
		}
	})
}
