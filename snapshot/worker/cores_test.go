package worker

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The cores have time to spare as long as a tenth of it was idle, or nothing is known of it.
func TestCores(t *testing.T) {
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "stat"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := &cores{stat: f, spare: true}
	for i, step := range []struct {
		line string
		want bool
	}{
		{"", true},
		{"cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3", true},
		{"cpu  195 0 100 805 0 0 0 0 0 0\n", false},    // 5 of 100
		{"cpu  195 0 100 805 0 0 0 0 0 0\n", false},    // the same moment
		{"cpu  250 0 100 805 0 0 0 35 0 0\n", false},   // what the host below took is not idle
		{"cpu  250 0 100 some 0 0 0 35 0 0\n", false},  // unreadable: as it was
		{"cpu  330 0 110 810 5 0 0 35 99 99\n", true},  // 10 of 100
		{"cpu  630 0 110 700 5 0 0 35 99 99\n", false}, // idle time may run backwards
		{"cpu  630 0 110 900 5 0 0 35 99 99\n", true},
	} {
		if err := os.WriteFile(f.Name(), []byte(step.line), 0o600); err != nil {
			t.Fatal(err)
		}
		c.looked = time.Time{}
		if got := c.Spare(); got != step.want {
			t.Errorf("step %d: %v after %q", i, got, step.line)
		}
	}
	if none := (&cores{spare: true}); !none.Spare() {
		t.Error("where it is not known there is none to spare")
	}
	if c.looked = time.Now(); !c.Spare() {
		t.Error("between two looks it is another")
	}
	here := openCores()
	if here.both == 0 || here.idle == 0 {
		t.Errorf("/proc/stat of this kernel: %d of %d ticks idle", here.idle, here.both)
	}
}
