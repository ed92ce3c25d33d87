package ring

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Result is how one case ended: one line of JSON in the results, written when it is known.
type Result struct {
	Case    string  `json:"case"`
	Passed  int     `json:"passed"`
	Failed  int     `json:"failed"`
	Skipped int     `json:"skipped"`
	Seconds float64 `json:"seconds"`
	Worked  float64 `json:"worked,omitempty"` // seconds of a processor that the ground has used
	Why     string  `json:"why,omitempty"`    // it failed
}

// Report is out/kvmhost.json. The numbers are tests.
type Report struct {
	Where      string   `json:"where"` // host or ground
	VMMs       []string `json:"vmms"`
	Passed     int      `json:"passed"`
	Failed     int      `json:"failed"`
	Skipped    int      `json:"skipped"`
	VoidStarts int      `json:"void_starts"`
	Seconds    int      `json:"seconds"`
	Cases      []Result `json:"cases"`
	LeftOut    []string `json:"left_out,omitempty"` // tests, each with the reason
	// VMMs that were asked for and are not here; cases, each with what they want
	NotRun []string `json:"not_run,omitempty"`
}

// ReadResults reads what a runner wrote; a line that was cut by its end is no result.
func ReadResults(from io.Reader) ([]Result, error) {
	text, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}
	var all []Result
	for line := range strings.Lines(string(text)) {
		var r Result
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &r) == nil {
			all = append(all, r)
		}
	}
	return all, nil
}

// Judge adds up the results of the planned cases. The error names every case that did not
// pass; one without a result is one of them.
func Judge(planned []Case, got []Result) (Report, error) {
	var r Report
	var wrong []error
	for _, c := range planned {
		if !slices.Contains(r.VMMs, c.VMM) {
			r.VMMs = append(r.VMMs, c.VMM)
		}
		for _, s := range c.Skips {
			r.LeftOut = append(r.LeftOut, c.ID()+": "+s.Test+": "+s.Why)
		}
		i := slices.IndexFunc(got, func(g Result) bool { return g.Case == c.ID() })
		res := Result{Case: c.ID(), Failed: 1, Why: "it has no result"}
		if i >= 0 {
			res = got[i]
		}
		r.Passed, r.Failed, r.Skipped = r.Passed+res.Passed, r.Failed+res.Failed, r.Skipped+res.Skipped
		r.Cases = append(r.Cases, res)
		if res.Why != "" {
			wrong = append(wrong, fmt.Errorf("%s: %s", res.Case, res.Why))
		}
	}
	if len(planned) == 0 {
		wrong = append(wrong, errors.New("no case was planned"))
	}
	return r, errors.Join(wrong...)
}
