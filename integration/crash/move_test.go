//go:build integration

package crash

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// moveSelection is what runs without GODWIT_CRASH=full.
var moveSelection = []string{
	"live/after source journal.SENDING", "live/before source Peer.Release", "live/before destination Task.Start", "live/before controller record.COMMITTED",
}

// TestCrashMoves kills each program that takes part in a move at each point that it
// registers, before and after, in live and cold moves, in one that is called off and in
// one whose destination fails after the commit; VMMs, workers, links and the registry in
// each row of the crash table. An observer of the guest judges (N-35, S0-11).
func TestCrashMoves(t *testing.T) {
	m := &matrix{t: t, full: os.Getenv("GODWIT_CRASH") == "full", killed: map[string]bool{}, alone: map[string]bool{}}
	defer m.close()
	for _, s := range scripts() {
		t.Run(s.name, func(t *testing.T) { m.play(t, s) })
	}
	if m.full {
		m.report()
	}
}

// matrix is all deaths of a run.
type matrix struct {
	t          *testing.T
	full       bool
	w          *travels
	points     []point         // that registered themselves
	killed     map[string]bool // edges, by script
	alone      map[string]bool // those where the program had ended by itself
	deaths     int
	violations int
}

// world answers the cluster that the last case has left in order, or a new one.
func (m *matrix) world() *travels {
	if m.w == nil {
		m.w = newTravels(m.t)
	}
	return m.w
}

func (m *matrix) close() {
	if m.w == nil {
		return
	}
	err := m.w.remove(m.t.Context())
	if err == nil {
		err = m.w.forgotten(m.t.Context())
	}
	if err != nil {
		m.t.Error(err)
	}
}

// play kills at each point of one script, and then what has no points.
func (m *matrix) play(t *testing.T, s script) {
	edges := m.survey(t, s)
	for _, e := range edges {
		m.one(t, s, e.String(), func(t *testing.T, w *travels) (bool, error) { return w.death(t, s, e) })
	}
	for _, h := range hurts(s) {
		m.one(t, s, h.name, func(t *testing.T, w *travels) (bool, error) { return true, w.hurt(t, s, h) })
	}
}

func (m *matrix) one(t *testing.T, s script, name string, play func(*testing.T, *travels) (killed bool, err error)) {
	if !m.full && !slices.Contains(moveSelection, s.name+"/"+name) {
		return
	}
	ran, killed := false, false
	ok := t.Run(name, func(t *testing.T) {
		ran = true
		w := m.world()
		var err error
		if killed, err = play(t, w); err == nil && !killed && !m.full {
			err = errors.New("nobody was killed: the program that came by has ended by itself")
		}
		if err != nil {
			t.Error(errors.Join(err, w.successors(), w.Logs()))
		}
	})
	if !ran {
		return
	}
	if killed {
		m.deaths++
		m.killed[s.name+"/"+name] = true
	} else {
		m.alone[s.name+"/"+name] = true
	}
	if !ok { // the next case does not pay for this one
		m.violations++
		m.w.Keep(t.Name() + "/" + name)
		if err := m.w.Close(); err != nil {
			t.Error(err)
		}
		m.w = nil
	}
}

// survey lists the points of a script that no death disturbs: those behind what the script
// itself does, and no others.
func (m *matrix) survey(t *testing.T, s script) []edge {
	if !m.full {
		return s.selected()
	}
	var all []edge
	t.Run("survey", func(t *testing.T) {
		w := m.world()
		from, err := w.awake(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a := w.act(s, from)
		defer a.letGo()
		if err := a.begin(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := w.settled(t.Context()); err != nil {
			t.Fatal(err)
		}
		all, err = a.points()
		if err != nil || len(all) < 4 {
			t.Fatalf("%d points: %v", len(all), err)
		}
		if err := w.clean(t.Context(), a.loser()); err != nil {
			t.Fatal(err)
		}
	})
	all = slices.DeleteFunc(all, func(e edge) bool { return s.only != nil && !s.only(e) })
	for _, e := range all {
		if !slices.Contains(m.points, e.point) {
			m.points = append(m.points, e.point)
		}
	}
	for _, e := range all {
		t.Logf("point: %s", e)
	}
	return all
}

// of reports whether there is such a case of e, in whatever script.
func of(cases map[string]bool, e edge) bool {
	return slices.ContainsFunc(scripts(), func(s script) bool { return cases[s.name+"/"+e.String()] })
}

// report writes the figures, and fails on a point that was not killed on both sides, unless
// the program that came by had ended by itself: such sides are counted for themselves.
func (m *matrix) report() {
	if strings.Contains(flagRun(), "/") {
		return // a part of it
	}
	ended := 0
	for _, p := range m.points {
		for _, side := range []string{"before", "after"} {
			switch e := (edge{p, side}); {
			case of(m.killed, e):
			case of(m.alone, e):
				m.t.Logf("%s there is nobody to kill: the program has ended", e)
				ended++
			default:
				m.t.Errorf("nobody was killed %s", e)
				m.violations++
			}
		}
	}
	root, err := harness.Root()
	if err != nil {
		m.t.Fatal(err)
	}
	out := struct {
		RealPoints    int    `json:"real_points"`
		RealDeaths    int    `json:"real_deaths"`
		EndedSides    int    `json:"ended_sides"` // of points, where nobody was left to kill
		SimulatedRuns int    `json:"simulated_runs"`
		Violations    int    `json:"violations"`
		When          string `json:"when"`
	}{len(m.points), m.deaths, ended, simulatedRuns(root), m.violations, time.Now().UTC().Format(time.RFC3339)}
	if err := harness.WriteResult(filepath.Join(root, "out", "crash.json"), out); err != nil {
		m.t.Error(err)
	}
	if len(m.points) < 60 {
		m.t.Errorf("%d points, 60 are the least", len(m.points))
	}
}

// simulatedRuns is what the simulation of the engine has noted, if it ran before.
func simulatedRuns(root string) (n int) {
	data, err := os.ReadFile(filepath.Join(root, "out", "simulated"))
	if err == nil {
		_, _ = fmt.Sscan(string(data), &n)
	}
	return n
}
