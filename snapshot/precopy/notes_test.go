package precopy

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// deafNotes hear of no write, and are known to be whole or not.
type deafNotes struct{ whole bool }

func (deafNotes) Take(func(offset, end int64)) {}
func (n deafNotes) Settled() bool              { return n.whole }

// takesAll is told of passes, and takes what it is told.
type takesAll struct{}

func (takesAll) Begin(Scope) error            { return nil }
func (takesAll) End(Scope) error              { return nil }
func (takesAll) Gone(*Area, int, *Mask) error { return nil }

// Notes have missed a write between two passes of a disk, and nothing writes afterwards. When the VM stands still, they
// are found not to be whole: all of the disk is read. That its times stand does not count, since the last pass has
// looked only at what was noted.
func TestNotesThatAreNotWhole(t *testing.T) {
	const pages = 2 * BlockPages
	for _, whole := range []bool{true, false} {
		f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, pages*pageSize)); err != nil {
			t.Fatal(err)
		}
		p := New([]Space{{Name: "disk", Disk: "disk", File: f, Notes: deafNotes{whole}}}, []int64{pages * pageSize},
			Options{Copy: takesAll{}})
		pass := func(scope Scope) (read int) {
			t.Helper()
			if _, err := p.next(t.Context(), scope.Last); err != nil {
				t.Fatal(err)
			}
			items := make(chan Item, pages)
			if err := p.offer(context.Background(), scope, items); err != nil {
				t.Fatal(err)
			}
			close(items)
			for it := range items {
				p.Areas[0].Block(it.Number).known = p.Areas[0].Block(it.Number).known.or(&it.Pages)
				read += it.Pages.Count()
			}
			return read
		}
		if read := pass(Scope{}); read != pages {
			t.Fatalf("the first pass read %d pages of %d", read, pages)
		}
		if _, err := f.WriteAt([]byte("missed"), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * settleTime)
		if read := pass(Scope{Number: 1}); read != 0 {
			t.Fatalf("a pass by notes read %d pages", read)
		}
		want := pages
		if whole { // what they say is believed
			want = 0
		}
		if read := pass(Scope{Last: true}); read != want {
			t.Errorf("whole: %v: the pause read %d pages, want %d", whole, read, want)
		}
	}
}
