package shim

import (
	"testing"

	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/vmm"
)

// Who takes a VMM over says that a pause may have failed half way: not of a VM whose wake is not over, or whose pages
// are to come. A vCPU that waits for a page cannot be paused.
func TestLeftVMM(t *testing.T) {
	for name, c := range map[string]struct {
		waking bool
		fill   *journal.Postcopy
		want   bool
	}{
		"held, or given back":     {want: true},
		"it wakes":                {waking: true},
		"pages are to come":       {fill: &journal.Postcopy{}},
		"it wakes, and they are":  {waking: true, fill: &journal.Postcopy{}},
		"the end of a fill":       {fill: &journal.Postcopy{Whole: true}, want: true},
		"the end of it in a wake": {waking: true, fill: &journal.Postcopy{Whole: true}, want: true},
	} {
		j := &journal.Journal{Task: journal.Task{Waking: c.waking}}
		j.Process, j.Postcopy = &vmm.Process{PID: 7}, c.fill
		if got := leftVMM(j); got.Halting != c.want || got.PID != 7 || j.Process.Halting {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
