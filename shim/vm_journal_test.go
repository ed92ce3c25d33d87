package shim

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// A draft becomes the journal where it is what is written then, byte by byte. Whatever else
// is written, and whatever has become of the draft, the journal says what was meant.
func TestDraft(t *testing.T) {
	votes := (*Journal).prepares
	for name, c := range map[string]struct {
		before func(w *world, draft string) error
		write  func(*Journal)
		used   bool
	}{
		"as foreseen":    {write: votes, used: true},
		"another change": {write: (*Journal).endOperation},
		"a change before it": {write: votes, before: func(w *world, _ string) error {
			vm, _ := w.service.current()
			return vm.write(func(j *Journal) { j.Digest = "d" })
		}},
		"it is gone": {write: votes, before: func(_ *world, draft string) error { return os.Rename(draft, draft+"x") }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			vm, err := w.service.current()
			w.must("find", err)
			vm.foresee(votes)
			if j, err := loadJournal(vm.dir); err != nil || j.Phase != Own {
				t.Fatalf("journal beside a draft: %+v, %v", j, err)
			}
			draft := w.inode(draftFile(vm.dir))
			if c.before != nil {
				w.must("before", c.before(w, draftFile(vm.dir)))
			}
			want := *vm.noted()
			c.write(&want)
			w.must("write", vm.write(c.write))
			if j, err := loadJournal(vm.dir); err != nil || j.Phase != want.Phase || j.Digest != want.Digest {
				t.Errorf("journal %+v, %v; want %s of %q", j, err, want.Phase, want.Digest)
			}
			if used := w.inode(journalFile(vm.dir)) == draft; used != c.used {
				t.Errorf("the draft is the journal: %v", used)
			}
		})
	}
}

// A draft that the disk does not take costs nothing.
func TestNoRoomForADraft(t *testing.T) {
	w := newWorld(t).running()
	vm, err := w.service.current()
	w.must("find", err)
	w.must("fill disk", os.Mkdir(draftFile(vm.dir), 0o700))
	vm.foresee((*Journal).prepares)
	w.must("write", vm.write((*Journal).prepares))
	if j, err := loadJournal(vm.dir); err != nil || j.Phase != Prepared {
		t.Errorf("journal %+v, %v", j, err)
	}
}

func (w *world) inode(path string) uint64 {
	w.t.Helper()
	var st unix.Stat_t
	w.must("stat", unix.Stat(path, &st))
	return st.Ino
}

// uses wants that what is written in call was drafted before.
func (w *world) uses(call string, vm *VM, do func() error) {
	w.t.Helper()
	if !eventually(func() bool { _, err := os.Stat(draftFile(vm.dir)); return err == nil }) {
		w.t.Errorf("%s: nothing is drafted", call)
	}
	w.must(call, do())
	if _, err := os.Stat(draftFile(vm.dir)); !os.IsNotExist(err) {
		w.t.Errorf("%s: the draft was of no use: %v", call, err)
	}
}

// sendAndBack takes a VM back that was sent although a call failed: what is done ahead of the
// vote is the vote's to do again.
func (w *world) sendAndBack() error {
	if _, err := w.send(); err != nil || w.fired() == "" {
		return err
	}
	w.must("vote", w.vote())
	if w.net.up {
		w.t.Error("tap is up after the vote")
	}
	_, err := w.machineService().Abort(w.t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.aborted++
	return err
}
