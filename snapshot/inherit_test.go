package snapshot

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
)

// quiet is a VM that runs and writes nothing.
type quiet struct{}

func (quiet) Prepare(context.Context) error                 { return nil }
func (quiet) Pause(context.Context) error                   { return nil }
func (quiet) Save(context.Context) (json.RawMessage, error) { return nil, nil }

// What is known of a page from before the restore never holds after a write, a move or a hole. A VM whose pages are
// compared is looked at once if few of them have changed: in the pause, which compares all of them anyway.
func TestInherited(t *testing.T) {
	for name, tt := range map[string]struct {
		live    bool
		changed int // of ramPages
		passes  int
	}{"still": {changed: 40}, "few": {live: true, changed: 40, passes: 1}, "many": {live: true, changed: ramPages,
		passes: 2}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 90)
			first, err := Push(t.Context(), w.st, w.src, w.opts)
			if err != nil {
				t.Fatal(err)
			}
			r := w.restore(t, first.Digest)
			if w.opts.Parent, err = OpenTable(r.table); err != nil {
				t.Fatal(err)
			}
			w.src.Spaces[0].File, w.src.Spaces[1].File = r.ram, r.disk
			rng := rand.New(rand.NewPCG(90, 90))
			fresh := 0
			for range tt.changed {
				page, buf := int64(rng.IntN(ramPages)), make([]byte, format.PageSize)
				switch rng.IntN(4) {
				case 0:
					if err := unix.Fallocate(int(r.ram.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, page*format.PageSize,
						format.PageSize); err != nil {
						t.Fatal(err)
					}
					continue
				case 1: // zero
				case 2: // what lies elsewhere
					if _, err := r.ram.ReadAt(buf, int64(rng.IntN(ramPages))*format.PageSize); err != nil {
						t.Fatal(err)
					}
				case 3:
					buf = randomBytes(rng, format.PageSize)
					fresh++
				}
				if _, err := r.ram.WriteAt(buf, page*format.PageSize); err != nil {
					t.Fatal(err)
				}
			}
			if tt.live {
				w.opts.Live, w.opts.Budget = quiet{}, precopy.PauseFixed+time.Millisecond
				w.opts.Still = true
			}
			w.opts.Ref.Operation = "op2"
			second, err := Push(t.Context(), w.st, w.src, w.opts)
			if err != nil {
				t.Fatal(err)
			}
			if got := len(second.Passes); got != tt.passes {
				t.Errorf("%d passes, want %d", got, tt.passes)
			}
			if most := uint64(fresh)*format.PageSize + second.Moved; second.Figures.New > most {
				t.Errorf("%d bytes are new of %d that were written", second.Figures.New, most)
			}
			again := w.restore(t, second.Digest)
			if sumFile(t, again.ram) != sumFile(t, r.ram) || sumFile(t, again.disk) != sumFile(t, r.disk) {
				t.Error("RAM or disk differ")
			}
		})
	}
}
