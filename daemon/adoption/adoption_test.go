package adoption

import (
	"testing"
	"testing/synctest"
	"time"

	"godwit.dev/godwit/migrate/engine"
)

// A VM whose shim dies is adopted at once, also soon after another shim of it has died. A VM
// whose successors die one after the other is adopted at pauses that grow to one round.
func TestAdopterPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Adopter{}
		var all, last time.Duration
		for i := range 12 {
			pause := a.pause("default/web")
			switch {
			case i == 0 && pause != 0:
				t.Errorf("the first waits for %v", pause)
			case i == 1 && pause > time.Second:
				t.Errorf("the second waits for %v", pause)
			case pause < last || pause > engine.PeriodicInterval || i == 11 && pause != engine.PeriodicInterval:
				t.Errorf("try %d waits for %v, the one before for %v", i, pause, last)
			}
			last, all = pause, all+pause
			time.Sleep(pause)
		}
		if all < 2*engine.PeriodicInterval {
			t.Errorf("12 tries in %v", all)
		}
		if pause := a.pause("default/other"); pause != 0 {
			t.Errorf("another VM waits for %v", pause)
		}
		time.Sleep(2 * engine.PeriodicInterval)
		if pause := a.pause("default/web"); pause != 0 {
			t.Errorf("one that was calm for two rounds waits for %v", pause)
		}
	})
}
