package soak

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// enough is the result of a run of half an hour with nothing wrong.
func enough() *Result {
	r := newResult(Options{Seed: 7, Pods: 2})
	r.Seconds, r.Operations, r.Faults, r.Checks = whole.Seconds(), leastPerMinute*int(whole/time.Minute), 100, 100
	names, _ := verbNames()
	for _, n := range slices.Concat(names, beginsAnew, podNames()) {
		r.Verbs[n] = leastSeen
	}
	for _, n := range faultNames() {
		r.Kinds[n] = leastSeen
	}
	return r
}

// A run with nothing wrong is taken; whatever is wrong or was not seen is named, with the seed.
func TestCheck(t *testing.T) {
	if err := enough().Check(Options{}); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Result){
		"VM ran twice":            func(r *Result) { r.Wrong = append(r.Wrong, "VM ran twice") },
		"left behind: a tap":      func(r *Result) { r.Left = append(r.Left, "a tap") },
		"grown: godwitd":          func(r *Result) { r.Grown = append(r.Grown, "godwitd") },
		"drain was seen 2 times":  func(r *Result) { r.Verbs["drain"] = 2 },
		"pod move was seen 2":     func(r *Result) { r.Verbs["pod move"] = 2 },
		"restart was seen 1":      func(r *Result) { r.Verbs["restart"] = 1 },
		"kill VMM was seen 0":     func(r *Result) { delete(r.Kinds, "kill VMM") },
		"3.0 operations a minute": func(r *Result) { r.Operations = 90 },
		"nothing is shown":        func(r *Result) { r.Checks = 0 },
	} {
		r := enough()
		spoil(r)
		err := r.Check(Options{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "seed 7") {
			t.Errorf("want %q: %v", want, err)
		}
	}
	short := enough()
	short.Seconds, short.Kinds = 120, map[string]int{"kill VMM": 1}
	if err := short.Check(Options{}); err != nil {
		t.Errorf("two minutes need not meet everything: %v", err)
	}
	short.Faults, short.Kinds = 0, nil
	if err := short.Check(Options{}); err == nil {
		t.Error("a run without a fault shows nothing")
	}
	if err := short.Check(Options{Faultless: true}); err != nil {
		t.Errorf("without faults, none has to be met: %v", err)
	}
}
