//go:build integration

package crash

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// moveSelection is what runs without GODWIT_CRASH=full.
var moveSelection = []string{
	"live/after source journal.SENDING", "live/before source Peer.Release", "live/before destination Task.Start",
	"live/before controller record.COMMITTED",
	"live/all sent, READY not written, source VMM",
}

// TestCrashMoves kills each program that takes part in a move at each point that it registers, before and after. It
// does so in live and cold moves, in one that is called off and in one whose destination fails after the commit.
// Containerds, VMMs, workers, links and the registry fail in each row of the crash table. An observer of the guest
// judges.
func TestCrashMoves(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	m := &matrix{t: t, root: root, full: os.Getenv("GODWIT_CRASH") == "full"}
	m.parts = m.readParts()
	defer m.close()
	for _, s := range scripts() {
		t.Run(s.name, func(t *testing.T) { m.play(t, s, m.parts[s.name]) })
	}
	if m.keeps() {
		m.report()
	}
}

// matrix is all deaths of a run.
type matrix struct {
	t     *testing.T
	root  string
	full  bool
	w     *moveWorld
	parts map[string]*part
}

// keeps reports whether what is played is written down: not of single cases.
func (m *matrix) keeps() bool { return m.full && strings.Count(flagRun(), "/") < 2 }

// world answers the cluster that the last case has left in order, or a new one.
func (m *matrix) world() *moveWorld {
	if m.w == nil {
		m.w = newMoveWorld(m.t)
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
func (m *matrix) play(t *testing.T, s script, p *part) {
	if !m.full {
		for _, name := range moveSelection {
			if name, mine := strings.CutPrefix(name, s.name+"/"); mine {
				m.one(t, s, &played{Name: name})
			}
		}
		return
	}
	if len(p.Cases) == 0 {
		for _, name := range m.survey(t, s) {
			p.Cases = append(p.Cases, &played{Name: name})
		}
	}
	for _, c := range p.Cases {
		if c.Outcome != "" {
			t.Logf("played before, by the same sources: %s: %s", c.Name, c.Outcome)
			continue
		}
		m.one(t, s, c)
		if p.When = time.Now().UTC(); !m.keeps() {
			continue
		}
		if err := p.write(); err != nil {
			t.Fatal(err)
		}
	}
}

// one plays a case, and notes what came of it.
func (m *matrix) one(t *testing.T, s script, c *played) {
	ran, outcome, begun := false, caseFailed, time.Now()
	ok := t.Run(c.Name, func(t *testing.T) {
		ran = true
		var err error
		if outcome, err = m.world().play(t, s, c.Name); err == nil && outcome != caseKilled && !m.full {
			err = errors.New("nobody was killed: the program that came by has ended by itself")
		}
		if err != nil {
			t.Error(errors.Join(err, m.w.successors(), m.w.Logs()))
		}
	})
	if !ran { // it was not asked for
		return
	}
	if c.Outcome = outcome; !ok {
		c.Outcome = caseFailed
	}
	c.Seconds, c.Load = time.Since(begun).Seconds(), load()
	if !ok { // the next case does not pay for this one
		m.w.Keep(t.Name() + "/" + c.Name)
		if err := m.w.Close(); err != nil {
			t.Error(err)
		}
		m.w = nil
	}
}

// play plays the case of that name: a side of a point, or what has none.
func (w *moveWorld) play(t *testing.T, s script, name string) (outcome string, err error) {
	for _, h := range deaths(s) {
		if h.name == name {
			return caseKilled, w.injure(t, s, h)
		}
	}
	e, ok := edgeOf(name)
	if !ok {
		return caseFailed, errors.New("there is no such case any more")
	}
	return w.death(t, s, e)
}

// survey lists the cases of a script: the points of one that no death disturbs, those after what the script itself
// does, and then what has no points.
func (m *matrix) survey(t *testing.T, s script) (names []string) {
	var all []edge
	ok := t.Run("survey", func(t *testing.T) {
		w := m.world()
		from, err := w.awake(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a := w.act(s, from)
		defer a.release()
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
	if !ok {
		return nil
	}
	for _, e := range slices.DeleteFunc(all, func(e edge) bool { return s.only != nil && !s.only(e) }) {
		t.Logf("point: %s", e)
		names = append(names, e.String())
	}
	for _, h := range deaths(s) {
		names = append(names, h.name)
	}
	return names
}
