package critest

import (
	"fmt"
	"slices"
	"strings"
)

// Result is what a suite says about a runtime handler, compared with the control.
type Result struct {
	Suite       string `json:"suite"`
	Release     string `json:"containerd"`
	Handler     string `json:"handler"`
	Passed      int    `json:"passed"`
	Failed      int    `json:"failed"`
	Skipped     int    `json:"skipped"`
	RuncPassed  int    `json:"runc_passed"`
	RuncFailed  int    `json:"runc_failed"`
	RuncSkipped int    `json:"runc_skipped"`
	// Shared is how much of what the control passes the handler passes too, in percent.
	Shared      float64 `json:"percent_of_runc"`
	Unexplained int     `json:"unexplained"`
	// What is wrong: specs that the list of known ones lacks, entries of it that are wrong, and specs that the control
	// must pass and does not.
	Unknown []Spec   `json:"unknown"`
	Stale   []string `json:"stale"`
	Below   []string `json:"below_floor"`
	Specs   []Pair   `json:"specs"`
}

// Pair is one spec with both ends.
type Pair struct {
	Name    string `json:"name"`
	Runc    State  `json:"runc"`
	State   State  `json:"state"`
	Why     string `json:"why,omitempty"`
	RuncWhy string `json:"runc_why,omitempty"`
	Reason  string `json:"reason,omitempty"` // of the list of known ones
}

// sometimes begins the reason of specs that end now so, now so: runc's ends differ too.
const sometimes = "sometimes "

// Judge compares the ends of the same specs. A spec that the handler fails and the control passes must be in known. So
// must each one that the handler skips, and each one that it fails where the control skips. An entry of known is stale
// if its spec passes or ran in neither; with part, specs that were not selected count as neither. The control must pass
// each spec of floor that ran.
func Judge(control, subject []Spec, known map[string]string, floor []string, part bool) Result {
	var r Result
	runc, ran := index(control), index(subject)
	shared := 0
	for _, s := range subject {
		c, both := runc[s.Name]
		pair := Pair{Name: s.Name, Runc: c.State, State: s.State, Why: s.Why, RuncWhy: c.Why, Reason: known[s.Name]}
		r.Specs = append(r.Specs, pair)
		r.count(s.State)
		if s.State == Passed {
			if c.State == Passed {
				shared++
			}
			if pair.Reason != "" && !strings.HasPrefix(pair.Reason, sometimes) {
				r.Stale = append(r.Stale, s.Name+": it passes")
			}
			continue
		}
		alone := !both || c.State == Passed || s.State == Skipped || c.State == Skipped
		if alone && pair.Reason == "" {
			r.Unknown = append(r.Unknown, s)
		}
	}
	for _, c := range control {
		r.countRunc(c.State)
		if _, ok := ran[c.Name]; !ok {
			r.Unknown = append(r.Unknown, Spec{Name: c.Name, State: Failed, Why: "it did not run"})
		}
	}
	r.check(ran, runc, known, floor, part)
	slices.Sort(r.Stale)
	r.Unexplained = len(r.Unknown)
	if r.RuncPassed > 0 {
		r.Shared = float64(shared*1000/r.RuncPassed) / 10
	}
	return r
}

// check compares the lists with the specs of the handler and of the control.
func (r *Result) check(ran, runc map[string]Spec, known map[string]string, floor []string, part bool) {
	for name := range known {
		if _, ok := ran[name]; !ok && !part {
			r.Stale = append(r.Stale, name+": there is no such spec")
		}
	}
	for _, name := range floor {
		if c, ok := runc[name]; c.State != Passed && (ok || !part) {
			r.Below = append(r.Below, fmt.Sprintf("%s: %s", name, c.Why))
		}
	}
}

// Err says what is wrong, or nil.
func (r *Result) Err() error {
	if len(r.Unknown)+len(r.Stale)+len(r.Below) == 0 {
		return nil
	}
	return fmt.Errorf("%s with %s: %d specs are not explained, %d entries of the list of known ones are wrong, "+
		"%d specs of the floor fail with %s", r.Suite, r.Handler, len(r.Unknown), len(r.Stale), len(r.Below), Control)
}

func (r *Result) count(s State)     { add(s, &r.Passed, &r.Failed, &r.Skipped) }
func (r *Result) countRunc(s State) { add(s, &r.RuncPassed, &r.RuncFailed, &r.RuncSkipped) }

func add(s State, passed, failed, skipped *int) {
	switch s {
	case Passed:
		*passed++
	case Failed:
		*failed++
	case Skipped:
		*skipped++
	}
}

func index(all []Spec) map[string]Spec {
	m := map[string]Spec{}
	for _, s := range all {
		m[s.Name] = s
	}
	return m
}
