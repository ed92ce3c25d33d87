package registry

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"godwit.dev/godwit/snapshot/worker"
)

// What was read of a snapshot serves one more question, of that snapshot, within freshFor.
func TestFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fresh
		o := &worker.Opened{RAM: 1}
		f.put("r", "d", o)
		if f.take("r", "other") != nil || f.take("other", "d") != nil || f.take("r", "d") != o || f.take("r", "d") != nil {
			t.Error("not taken once, as it was put")
		}
		f.put("r", "d", o)
		time.Sleep(freshFor + 1)
		if f.take("r", "d") != nil {
			t.Error("taken too late")
		}
		for _, d := range []string{"1", "2", "3"} {
			f.put("r", d, o)
			time.Sleep(freshFor + 1)
		}
		if f.put("r", "4", o); len(f.all) != 1 {
			t.Errorf("%d are remembered", len(f.all))
		}
		for i := range 100 {
			if f.put("r", fmt.Sprint(i), o); len(f.all) > freshMost {
				t.Fatalf("%d are remembered", len(f.all))
			}
		}
	})
}
