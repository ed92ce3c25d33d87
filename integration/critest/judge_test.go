package critest

import (
	"slices"
	"testing"
	"time"
)

func spec(name string, s State) Spec { return Spec{Name: name, State: s, Why: "w"} }

// What a handler does not pass although the control does, and what it skips, must have a reason.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name          string
		runc, subject State
		known         bool
		unknown       bool
		stale         bool
	}{
		{"both pass", Passed, Passed, false, false, false},
		{"it fails alone", Passed, Failed, false, true, false},
		{"it fails alone, known", Passed, Failed, true, false, false},
		{"both fail", Failed, Failed, false, false, false},
		{"it passes alone", Failed, Passed, false, false, false},
		{"it skips alone", Passed, Skipped, false, true, false},
		{"both skip", Skipped, Skipped, false, true, false},
		{"both skip, known", Skipped, Skipped, true, false, false},
		{"it skips what the control fails", Failed, Skipped, false, true, false},
		{"it fails what the control skips", Skipped, Failed, false, true, false},
		{"known, but it passes", Passed, Passed, true, false, true},
		{"known, but both pass by skipping none", Failed, Passed, true, false, true},
	} {
		known := map[string]string{}
		if c.known {
			known["a"] = "reason"
		}
		r := Judge([]Spec{spec("a", c.runc)}, []Spec{spec("a", c.subject)}, known, nil, false)
		if got := r.Unexplained == 1; got != c.unknown || len(r.Unknown) != r.Unexplained {
			t.Errorf("%s: unexplained %d, %v", c.name, r.Unexplained, r.Unknown)
		}
		if got := len(r.Stale) == 1; got != c.stale {
			t.Errorf("%s: stale %v", c.name, r.Stale)
		}
		if bad := c.unknown || c.stale; bad != (r.Err() != nil) {
			t.Errorf("%s: %v", c.name, r.Err())
		}
	}
}

// An entry whose reason says sometimes may pass.
func TestJudgeSometimes(t *testing.T) {
	known := map[string]string{"a": sometimes + "skipped with runc too: a race"}
	for _, s := range []State{Passed, Skipped} {
		if r := Judge([]Spec{spec("a", Skipped)}, []Spec{spec("a", s)}, known, nil, false); r.Err() != nil {
			t.Errorf("%s: %+v", s, r)
		}
	}
}

// A spec that ran once only is an error. So is an entry for a spec that is gone, and a control that has become worse.
// For a selection, what was not selected is no error.
func TestJudgeMissing(t *testing.T) {
	control := []Spec{spec("a", Passed), spec("b", Passed)}
	known := map[string]string{"gone": "reason"}
	floor := []string{"a", "b", "c"}
	r := Judge(control, control[:1], known, floor, false)
	if r.Unexplained != 1 || len(r.Stale) != 1 || len(r.Below) != 1 || r.Shared != 50 {
		t.Errorf("whole: %+v", r)
	}
	r = Judge(control[:1], control[:1], known, floor, true)
	if r.Err() != nil || r.Shared != 100 || r.Passed != 1 || r.RuncPassed != 1 {
		t.Errorf("selection: %+v", r)
	}
	r = Judge([]Spec{spec("a", Failed)}, []Spec{spec("a", Failed)}, nil, floor, true)
	if len(r.Below) != 1 || r.Err() == nil {
		t.Errorf("floor: %+v", r)
	}
}

// The report of ginkgo has each spec that was selected once, whatever state it ended in.
func TestReadGinkgo(t *testing.T) {
	report := `[{"SpecReports": [
		{"LeafNodeType": "BeforeSuite", "State": "passed"},
		{"ContainerHierarchyTexts": ["Pod", "runs"], "LeafNodeType": "It", "LeafNodeText": "one", "State": "passed"},
		{"ContainerHierarchyTexts": ["Pod", "runs"], "LeafNodeType": "It", "LeafNodeText": "one", "State": "timedout",
		 "Failure": {"Message": "late\n  by far"}},
		{"ContainerHierarchyTexts": null, "LeafNodeType": "It", "LeafNodeText": "none", "State": "skipped",
		 "Failure": {"Message": "no such thing"}},
		{"LeafNodeType": "It", "LeafNodeText": "benchmark", "State": "skipped"}]}]`
	got, err := readGinkgo([]byte(report))
	want := []Spec{{Name: "Pod runs one", State: Passed}, {Name: "Pod runs one (2)", State: Failed, Why: "late by far"},
		{Name: "none", State: Skipped, Why: "no such thing"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := readGinkgo([]byte(`[{"SpecReports"`)); err == nil {
		t.Error("half a report is read")
	}
}

// A test of containerd's suite that says nothing about its end has failed.
func TestReadTest(t *testing.T) {
	for out, want := range map[string]Spec{
		"--- PASS: TestA (0.1s)\nPASS\n":                              {State: Passed},
		"    a_test.go:7: no\n--- SKIP: TestA (0.1s)\nPASS\n":         {State: Skipped, Why: "a_test.go:7: no"},
		"\tError:\tno pod\n    --- PASS: TestA/b\n--- FAIL: TestA ()": {State: Failed, Why: "Error: no pod"},
		"--- PASS: TestAB (1s)\npanic: timed out\n":                   {State: Failed, Why: "panic: timed out"},
		"": {State: Failed},
	} {
		want.Name = "TestA"
		if got := readTest("TestA", out, 0*time.Second); got != want {
			t.Errorf("%q: got %+v, want %+v", out, got, want)
		}
	}
}

// Each entry of a list has a reason, and is in it once.
func TestParseKnown(t *testing.T) {
	got, err := parseKnown("# about\n\nreason: because\n a b\nc\n\nreason: else\nd\n")
	if err != nil || len(got) != 3 || got["a b"] != "because" || got["d"] != "else" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"a\n", "reason: r\na\na\n", "reason: r\na\nreason: s\na\n"} {
		if got, err := parseKnown(bad); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}

// The committed lists can be read, and none has a spec that the other one rules out by its suite.
func TestLists(t *testing.T) {
	for _, suite := range []string{"critest", "cri-suite"} {
		known, err := Known(suite)
		if err != nil {
			t.Error(err)
		}
		floor, err := Floor(suite)
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s: %d known, %d in the floor", suite, len(known), len(floor))
	}
}
