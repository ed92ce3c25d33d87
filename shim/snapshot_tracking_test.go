package shim

import (
	"os"
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

// The kernel's notes after a checkpoint are believed once its page table is the VM's, and not before: a shim that dies
// up to there leaves none. With any other table, or of another VMM, all pages are read.
func TestNotesBehindACheckpoint(t *testing.T) {
	for name, tt := range map[string]struct {
		with  func(w *world, vm *VM)
		table bool
		want  bool
	}{
		"noted":             {table: true, want: true},
		"not noted":         {with: func(w *world, _ *VM) { w.store.noting = false }, table: true},
		"no file":           {},
		"no table":          {with: func(w *world, _ *VM) { w.store.untabled = "no room" }, table: true},
		"the upload failed": {with: func(w *world, _ *VM) { w.store.failUpload = true }, table: true},
		"another VMM": {with: func(w *world, vm *VM) {
			w.at("upload", func() error {
				return vm.write(func(j *journal.Journal) {
					p := *j.Process
					p.StartTime++
					j.Process = &p
				})
			})
		}, table: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			vm, err := w.service.current()
			w.must("find", err)
			w.store.noting, w.store.late = true, make(chan struct{})
			if tt.with != nil {
				tt.with(w, vm)
			}
			done := make(chan error, 1)
			go func() { _, err := w.checkpoint(false); done <- err }()
			goesOn := func() bool { vm.mu.Lock(); defer vm.mu.Unlock(); return vm.op.upload != nil && vm.state == Running }
			if !eventually(goesOn) {
				t.Fatal("the VM does not go on while its checkpoint is sent")
			}
			if w.journal().Armed {
				t.Error("a shim that dies here leaves notes of a table that is not the VM's yet")
			}
			next := nextFile(vm.journal.Load())
			if tt.table {
				w.must("make page table", os.WriteFile(next, []byte("new"), 0o600))
			} else {
				w.must("lose page table", os.Remove(next))
			}
			close(w.store.late)
			if err := <-done; (err != nil) != w.store.failUpload {
				t.Fatal(err)
			}
			if got := w.journal().Armed; got != tt.want {
				t.Errorf("the notes are believed: %v", got)
			}
		})
	}
}
