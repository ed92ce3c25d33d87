package soak

import (
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// ended is the end of a program with an exit code.
func ended(t *testing.T, program string, code int) error {
	t.Helper()
	err := exec.CommandContext(t.Context(), "/bin/sh", "-c", fmt.Sprintf("exit %d", code)).Run()
	return fmt.Errorf("do it: %w", &harness.RunError{Node: "a", Args: []string{program, "do"}, Err: err})
}

// Whatever is done to a cluster, some ends of a verb are wrong. While nothing is done to it, all are that are no
// success, unless the schedule has ended the VM.
func TestWhatIsBlamed(t *testing.T) {
	for name, c := range map[string]struct {
		err            error
		excused, sound bool
		adopted        string
		wrong          bool
	}{
		"no class":                  {err: ended(t, "godwit", unknown), wrong: true},
		"no class, excused":         {err: ended(t, "godwit", unknown), excused: true, wrong: true},
		"misuse":                    {err: ended(t, "godwit", misused), wrong: true},
		"corrupt":                   {err: ended(t, "godwit", corrupt), wrong: true},
		"corrupt, of an ended VM":   {err: ended(t, "godwit", corrupt), excused: true},
		"unavailable, with a fault": {err: ended(t, "godwit", unavailable)},
		"unavailable":               {err: ended(t, "godwit", unavailable), sound: true, wrong: true},
		"ctr, with a fault":         {err: ended(t, "ctr", 1)},
		"ctr":                       {err: ended(t, "ctr", 1), sound: true, wrong: true},
		"ctr, of a VM without task": {err: ended(t, "ctr", 1), sound: true, adopted: "a"},
		"ctr, task lost elsewhere":  {err: ended(t, "ctr", 1), sound: true, adopted: "b", wrong: true},
		"godwit, without task":      {err: ended(t, "godwit", unavailable), sound: true, adopted: "a", wrong: true},
		"silence":                   {err: errors.New("it is not heard"), sound: true, wrong: true},
		"silence of an ended VM":    {err: errors.New("it is not heard"), sound: true, excused: true},
	} {
		g := &guest{adopted: c.adopted}
		if c.excused {
			g.excuse("killed")
		}
		a := &act{g: g, sound: c.sound, owner: &harness.Node{Name: "a"}}
		if got := a.faultOf(c.err); (got != "") != c.wrong {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := (&act{g: &guest{}, sound: true}).faultOf(nil); got != "" {
		t.Errorf("a success is %s", got)
	}
}

// The verbs of a VM's day are drawn apart too: a committed seed stays what it is.
func TestDayVerbsAreDrawnApart(t *testing.T) {
	_, all := verbNames()
	s, day := NewSchedule(7, all, faultNames()), newSchedule(7, dayStream, drawnOf(dayVerbs()), nil)
	var steps []Step
	seen := map[string]bool{}
	for range 200 {
		seen[day.verb().Name] = true
		steps = append(steps, s.Next())
	}
	if len(seen) != len(dayVerbs()) || !reflect.DeepEqual(steps, drawn(7, 200)) {
		t.Errorf("seen are %v, or the schedule is another one", seen)
	}
}

// What is drawn after judgements changes no schedule, and is each verb that needs no fault.
func TestSoundVerbsAreDrawnApart(t *testing.T) {
	_, all := verbNames()
	s, sound := NewSchedule(7, all, faultNames()), newSchedule(7, soundStream, unfaulted, nil)
	var steps []Step
	seen := map[string]bool{}
	for range 200 {
		step := sound.verb()
		seen[step.Name] = true
		if !step.Sound || step.Fault || !slices.Contains(all, step.Name) {
			t.Fatalf("%+v", step)
		}
		steps = append(steps, s.Next())
	}
	if len(seen) != len(unfaulted) || !reflect.DeepEqual(steps, drawn(7, 200)) {
		t.Errorf("seen are %v, or the schedule is another one", seen)
	}
}
