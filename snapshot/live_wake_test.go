package snapshot

import (
	"os"
	"testing"
	"time"

	"godwit.dev/godwit/snapshot/format"
)

// Of a VM whose writes were noted from its wake on only those are looked at. The snapshot is the VM all the same,
// also where the store has lost what the restore had.
func TestLiveFromTheWakeOn(t *testing.T) {
	for name, lost := range map[string]bool{"whole": false, "a pack is gone": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 23)
			w.wake(t, "op2")
			if lost {
				for _, p := range w.opts.Parent.packs {
					if err := os.Remove(w.blob(packDescriptor(p.Pack).Digest)); err != nil {
						t.Fatal(err)
					}
				}
			}
			g := newGuest(w, 7)
			close(g.stopped) // it has run, and stands still
			for page := range int64(20) {
				g.write(300+page, randomBytes(g.rng, format.PageSize))
			}
			g.write(500, make([]byte, format.PageSize))
			g.punch(600)
			w.opts.Live, w.opts.Tracker, w.opts.Budget, w.opts.Still = g, &model{guest: g, between: true, armed: true},
				50*time.Millisecond, true
			second, err := Push(t.Context(), w.st, w.src, w.opts)
			if err != nil {
				t.Fatal(err)
			}
			g.check(t, w, second)
			disk, err := fileSize(g.disk)
			if err != nil {
				t.Fatal(err)
			}
			if looked, most := second.Passes[0].Looked, uint64(disk)+30*format.PageSize; !lost && looked > most || lost &&
				looked <= most {
				t.Errorf("looked at %d bytes, %d are the disk and what was written", looked, most)
			}
		})
	}
}

// wake has the VM pushed, and goes on with what is restored of that.
func (w *world) wake(t *testing.T, next string) {
	t.Helper()
	first, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	r := w.restore(t, first.Digest)
	w.src.Spaces[0].File, w.src.Spaces[1].File = r.ram, r.disk
	w.opts.Ref.Operation = next
	if w.opts.Parent, err = OpenTable(r.table); err != nil {
		t.Fatal(err)
	}
}
