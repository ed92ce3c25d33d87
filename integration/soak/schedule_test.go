package soak

import (
	"fmt"
	"reflect"
	"testing"
)

func drawn(seed uint64, n int) (all []Step) {
	_, verbs := verbNames()
	s := NewSchedule(seed, verbs, faultNames())
	for range n {
		all = append(all, s.Next())
	}
	return all
}

// One seed draws the same steps again, another one others.
func TestScheduleIsOfItsSeed(t *testing.T) {
	if !reflect.DeepEqual(drawn(7, 500), drawn(7, 500)) {
		t.Error("one seed draws two schedules")
	}
	if reflect.DeepEqual(drawn(7, 500), drawn(8, 500)) {
		t.Error("two seeds draw one schedule")
	}
}

// Each verb and each kind of fault is drawn four times in 15 rounds, whatever the seed: half an hour has that many, and
// one of four may have no VM to act on.
func TestScheduleDrawsEverything(t *testing.T) {
	const rounds = 15
	for seed := range uint64(200) {
		seen := map[string]int{}
		for _, s := range drawn(seed, rounds*(perRound+1)) {
			seen[s.Name]++
			if s.Gap < 0 || s.Gap > maxGap || s.Fault && (s.For < minFault || s.For > longFault) {
				t.Fatalf("seed %d draws %s", seed, s)
			}
		}
		names, _ := verbNames()
		for _, name := range append(names, faultNames()...) {
			if seen[name] < leastSeen+1 {
				t.Errorf("seed %d draws %s %d times", seed, name, seen[name])
			}
		}
		if seen[Calm] != rounds {
			t.Errorf("seed %d draws %d judgements", seed, seen[Calm])
		}
	}
}

// What is kept of the steps is the last ten.
func TestTail(t *testing.T) {
	var all tail
	for i := range 25 {
		all.add(fmt.Sprint(i))
	}
	if last := all.last(); len(last) != tailSteps || last[0] != "15" || last[9] != "24" {
		t.Errorf("kept %q", last)
	}
}

// A place in a list is chosen by a number in [0, 1).
func TestAt(t *testing.T) {
	list := []string{"a", "b", "c"}
	for pick, want := range map[float64]string{0: "a", 0.34: "b", 0.999: "c"} {
		if got, ok := at(list, pick); !ok || got != want {
			t.Errorf("%v picks %q", pick, got)
		}
	}
	if _, ok := at([]string{}, 0.5); ok {
		t.Error("an empty list has one")
	}
}
