package snapshot

import (
	"context"
	"errors"
	"testing"
	"time"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
)

// prepared does something in Prepare.
type prepared struct {
	*guest
	do func() error
}

func (p prepared) Prepare(context.Context) error { return p.do() }

// What a guest writes while its pause is prepared is looked at before the pause, unless passes cannot keep up with
// what it writes. What cannot be prepared ends the push.
func TestPrepare(t *testing.T) {
	const pages = 400
	failed := errors.New("failed on purpose")
	for name, tt := range map[string]struct {
		budget  time.Duration
		busy    bool // more is written while each pass goes on
		fail    error
		passes  int // with that of the pause
		inPause bool
	}{
		"near":      {budget: precopy.PauseFixed + 100*time.Microsecond, passes: 3},
		"far":       {budget: precopy.PauseFixed + 100*time.Microsecond, busy: true, passes: 3, inPause: true},
		"no passes": {passes: 1, inPause: true},
		"fails":     {budget: precopy.PauseFixed + 100*time.Microsecond, fail: failed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 51)
			g := newGuest(w, 6)
			close(g.stopped)
			write := func() {
				for page := range int64(pages) {
					g.write(page, randomBytes(g.rng, format.PageSize))
				}
			}
			w.opts.Live = prepared{g, func() error { write(); return tt.fail }}
			w.opts.Tracker, w.opts.Budget, w.opts.Still = stepped{&model{guest: g, between: true}, func() {
				if tt.busy {
					write()
				}
			}}, tt.budget, true
			receipt, err := Push(t.Context(), w.st, w.src, w.opts)
			if !errors.Is(err, tt.fail) || tt.fail != nil && g.paused {
				t.Fatalf("paused %v, %v", g.paused, err)
			}
			if tt.fail != nil {
				return
			}
			g.check(t, w, receipt)
			made := receipt.Passes
			if len(made) != tt.passes {
				t.Fatalf("passes %+v, want %d", made, tt.passes)
			}
			if inPause := made[len(made)-1].Sent / format.PageSize; (inPause >= pages) != tt.inPause {
				t.Errorf("%d pages were sent in the pause", inPause)
			}
		})
	}
}

// Where RAM has data is found out while the state is saved, if no tracker tells what is written. It is found out
// again if the VMM makes or frees pages meanwhile, also if it makes as many as it frees.
func TestSurvey(t *testing.T) {
	for name, inSave := range map[string]func(g *guest, hole, data int64){
		"nothing": func(*guest, int64, int64) {},
		"makes":   func(g *guest, hole, _ int64) { g.write(hole, randomBytes(g.rng, format.PageSize)) },
		"frees":   func(g *guest, _, data int64) { g.punch(data) },
		"both": func(g *guest, hole, data int64) {
			g.write(hole, randomBytes(g.rng, format.PageSize))
			g.punch(data)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 52)
			g := newGuest(w, 6)
			close(g.stopped)
			hole, data := int64(-1), int64(-1)
			for page := int64(100); hole < 0 || data < 0; page++ {
				switch has, err := precopy.SeekData(g.ram, page*format.PageSize); {
				case err != nil:
					t.Fatal(err)
				case has == page*format.PageSize && data < 0:
					data = page
				case has != page*format.PageSize && hole < 0:
					hole = page
				}
			}
			g.inSave = func() { inSave(g, hole, data) }
			settle(t, g.ram)
			w.opts.Live, w.opts.Budget, w.opts.Still = g, 0, true
			receipt, err := Push(t.Context(), w.st, w.src, w.opts)
			if err != nil {
				t.Fatal(err)
			}
			g.check(t, w, receipt)
		})
	}
}
