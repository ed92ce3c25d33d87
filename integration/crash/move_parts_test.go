//go:build integration

package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/internal/failpoint"
)

// Outcomes of a case. One that has none has not been played.
const (
	caseKilled = "killed"
	caseEnded  = "ended"  // the program that came by had ended by itself: there was no program to kill
	caseMissed = "missed" // programs came by less often than in the survey: after a death other programs write
	caseFailed = "failed"
)

// played is one case of a script.
type played struct {
	Name    string  `json:"name"`
	Outcome string  `json:"outcome,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	Load    float64 `json:"load,omitempty"` // of the machine, over a minute, after it
}

// part is one script of the matrix: what was played of it, and by which programs. It lies
// in out/crash, so that a run that was interrupted goes on, and parts make up a whole.
type part struct {
	Script string    `json:"script"`
	Commit string    `json:"commit"`
	When   time.Time `json:"when"`
	Cases  []*played `json:"cases"`

	file string
}

func partFile(root, script string) string {
	return filepath.Join(root, "out", "crash", strings.ReplaceAll(script, " ", "-")+".json")
}

// readPart answers an empty part if there is none.
func readPart(root, script string) *part {
	p := &part{}
	data, err := os.ReadFile(partFile(root, script))
	if err != nil || json.Unmarshal(data, p) != nil || p.Script != script {
		p = &part{Script: script}
	}
	p.file = partFile(root, script)
	return p
}

func (p *part) write() error { return harness.WriteResult(p.file, p) }

// whole reports whether each of its cases was played.
func (p *part) whole() bool {
	return len(p.Cases) > 0 && !slices.ContainsFunc(p.Cases, func(c *played) bool { return c.Outcome == "" })
}

func (p *part) count(outcome string) (n int) {
	for _, c := range p.Cases {
		if c.Outcome == outcome {
			n++
		}
	}
	return n
}

// commit names the sources that the programs are built of. Changed ones have no name: whether they are the same as
// before is not known.
func commit(ctx context.Context, root string) string {
	cmd := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude", "*")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "unknown-dirty"
	}
	return strings.TrimSpace(string(out))
}

// readParts answers what earlier runs of the same sources have played of each script. Where
// they have left nothing to be done, all is played again.
func (m *matrix) readParts() (all map[string]*part) {
	now, left := commit(m.t.Context(), m.root), false
	all = map[string]*part{}
	for _, s := range scripts() {
		all[s.name] = readPart(m.root, s.name)
		left = left || all[s.name].Commit != now || !all[s.name].whole()
	}
	for name, p := range all {
		if p.Commit != now || strings.HasSuffix(now, "-dirty") || !left || !m.keeps() {
			all[name] = &part{Script: name, Commit: now, file: p.file}
		}
	}
	return all
}

// summary is out/crash.json.
type summary struct {
	RealPoints    int           `json:"real_points"`
	RealDeaths    int           `json:"real_deaths"`
	EndedSides    int           `json:"ended_sides"`  // of points, where no program was left to kill
	MissedSides   int           `json:"missed_sides"` // of points that a death passes once more or not; they do not count
	SimulatedRuns int           `json:"simulated_runs"`
	Violations    int           `json:"violations"`
	Failed        []string      `json:"failed,omitempty"`
	Seconds       float64       `json:"seconds"`
	Load          float64       `json:"load"` // of the machine, the mean of all cases
	Parts         []summaryPart `json:"parts"`
	When          string        `json:"when"`
}

type summaryPart struct {
	Script  string    `json:"script"`
	Commit  string    `json:"commit"` // of the sources
	Deaths  int       `json:"deaths"`
	Failed  int       `json:"failed"`
	Seconds float64   `json:"seconds"`
	When    time.Time `json:"when"`
}

// report joins the parts, once they are whole, into out/crash.json. It fails on a point that
// was not killed on both sides, unless the program that came by had ended by itself.
func (m *matrix) report() {
	out := summary{SimulatedRuns: simulatedRuns(m.root), When: time.Now().UTC().Format(time.RFC3339)}
	cases, sides := 0.0, map[edge]string{} // the best that came of them, in whatever script
	for _, s := range scripts() {
		p := readPart(m.root, s.name)
		if !p.whole() {
			m.t.Logf("out/crash.json waits for %q: %d of its %d cases are not played", s.name, p.count(""), len(p.Cases))
			if !strings.Contains(flagRun(), "/") { // not a part of it by wish
				m.t.Fail()
			}
			return
		}
		sum := summaryPart{Script: s.name, Commit: p.Commit, Deaths: p.count(caseKilled), Failed: p.count(caseFailed),
			When: p.When}
		for _, c := range p.Cases {
			sum.Seconds += c.Seconds
			out.Load += c.Load
			cases++
			if c.Outcome == caseFailed {
				out.Failed = append(out.Failed, s.name+"/"+c.Name)
			}
			if e, ok := edgeOf(c.Name); ok && (sides[e] == "" || sides[e] == caseMissed || c.Outcome == caseKilled) {
				sides[e] = c.Outcome
			}
		}
		out.RealDeaths += sum.Deaths
		out.Seconds += sum.Seconds
		out.Parts = append(out.Parts, sum)
	}
	out.Load /= cases
	out.Violations = len(out.Failed)
	for e, outcome := range sides {
		other := edge{e.point, failpoint.Before}
		if e.side == failpoint.Before {
			other.side = failpoint.After
		}
		switch {
		case outcome == caseMissed:
			out.MissedSides++
		case sides[other] == "":
			m.t.Errorf("nobody was killed %s", other)
			out.Violations++
		case outcome == caseEnded:
			out.EndedSides++
		}
		if e.side == failpoint.Before && outcome != caseMissed && sides[other] != caseMissed {
			out.RealPoints++
		}
	}
	if err := harness.WriteResult(filepath.Join(m.root, "out", "crash.json"), out); err != nil {
		m.t.Error(err)
	}
	if out.RealPoints < 60 || out.Violations > 0 {
		m.t.Errorf("%d points, 60 are the least; %d violations, 0 are the most: %v", out.RealPoints, out.Violations,
			out.Failed)
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

// load of the machine over the last minute.
func load() (l float64) {
	data, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, _ = fmt.Sscan(string(data), &l)
	}
	return l
}
