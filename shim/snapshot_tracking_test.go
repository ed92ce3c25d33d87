package shim

import (
	"testing"
	"time"

	"godwit.dev/godwit/shim/journal"
)

// Notes of what a VM has written since its wake are used by the first capture, and by no
// other: who reads them uses them up, and so may who dies over it.
func TestNotesAreUsedOnce(t *testing.T) {
	for name, fault := range map[string]error{"captured": nil, "failed": errFake} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			vm, err := w.service.current()
			w.must("find", err)
			w.must("note", vm.write(func(j *journal.Journal) { j.Armed = true }))
			seen := 0
			w.at("push pages", func() error {
				seen++
				if vm.mu.Lock(); !vm.op.capture.armed {
					t.Error("the capture knows nothing of the notes")
				}
				vm.mu.Unlock()
				if w.journal().Armed {
					t.Error("a capture that dies here leaves notes that it may have read")
				}
				return fault
			})
			if _, err := w.capture(); (err != nil) != (fault != nil) || seen != 1 {
				t.Errorf("capture: %v, pushed %d times", err, seen)
			}
			if w.journal().Armed {
				t.Error("the next capture would believe notes that were read")
			}
		})
	}
}

// A live move reads them, too. A VMM that is started has none, and neither has a wake that could not
// have the kernel take them.
func TestNotesAreOfOneVMM(t *testing.T) {
	j := &journal.Journal{Resources: journal.Resources{Armed: true}}
	j.BeginSending("op1", 1, 1, time.Minute)
	if j.Armed {
		t.Error("a move that ends here leaves notes that it has read")
	}
	w := newWorld(t).asleep()
	w.running()
	if w.journal().Armed {
		t.Error("the journal tells of notes that nobody takes")
	}
}
