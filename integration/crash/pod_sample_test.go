//go:build integration

package crash

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Variables that choose a sample of the cases of pods that sleep, wake and move. Without a count there is none; without
// a seed it is a new one.
const (
	countVariable = "GODWIT_CRASH_COUNT"
	seedVariable  = "GODWIT_CRASH_SEED"
)

// sample is how many cases are drawn, and by which seed.
type sample struct {
	seed  uint64
	count int
}

// sampled reads the variables; nil: no sample is wanted.
func sampled(t *testing.T) *sample {
	t.Helper()
	if os.Getenv(countVariable) == "" {
		return nil
	}
	count, err := strconv.Atoi(os.Getenv(countVariable))
	if err != nil || count < 1 {
		t.Fatalf("%s is %q, and is to be a number of cases", countVariable, os.Getenv(countVariable))
	}
	s := &sample{seed: rand.Uint64(), count: count}
	if text := os.Getenv(seedVariable); text != "" {
		if s.seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	return s
}

// draw answers the sample, sorted. Each case has a number of its own by seed and name, and the least ones are taken. So
// each case is as likely as any other, and one point more or less in a survey changes no other choice.
func (s *sample) draw(all []string) []string {
	number := func(name string) string {
		sum := sha256.Sum256([]byte(strconv.FormatUint(s.seed, 10) + " " + name))
		return string(sum[:])
	}
	drawn := slices.SortedFunc(slices.Values(all), func(a, b string) int { return cmp.Compare(number(a), number(b)) })
	drawn = drawn[:min(s.count, len(drawn))]
	slices.Sort(drawn)
	return drawn
}

// log tells what was drawn, and how to draw it again.
func (s *sample) log(t *testing.T, all, drawn []string) {
	of := map[string]int{}
	for _, name := range all {
		step, _, _ := strings.Cut(name, "/")
		of[step]++
	}
	t.Logf("%s=%d %s=%d draws %d of %d cases (%v):\n%s", seedVariable, s.seed, countVariable, s.count, len(drawn),
		len(all), of, strings.Join(drawn, "\n"))
}

// TestSample: a seed draws the same cases each time, in whatever order they are found. A case that is new changes
// no more than its own choice. Each case is drawn as often as any other.
func TestSample(t *testing.T) {
	var all []string
	for i := range 40 {
		all = append(all, fmt.Sprintf("wake/case %d", i))
	}
	s := &sample{seed: 7, count: 10}
	first := s.draw(all)
	backwards := slices.Clone(all)
	slices.Reverse(backwards)
	if again := s.draw(backwards); len(first) != 10 || !slices.Equal(first, again) {
		t.Errorf("seed 7 draws %q, and then %q", first, again)
	}
	kept := 0
	for _, name := range s.draw(append(backwards, "wake/new")) {
		if slices.Contains(first, name) {
			kept++
		}
	}
	if kept < 9 {
		t.Errorf("with a new case %d of 10 are drawn again", kept)
	}
	times := map[string]int{}
	const seeds = 2000
	for seed := range uint64(seeds) {
		for _, name := range (&sample{seed, 10}).draw(all) {
			times[name]++
		}
	}
	for _, name := range all { // 500 are expected, and 100 are five deviations
		if n := times[name]; n < 400 || n > 600 {
			t.Errorf("of %d seeds %d draw %s", seeds, n, name)
		}
	}
	if got := (&sample{7, 100}).draw(all); len(got) != len(all) {
		t.Errorf("a count of 100 draws %d of %d", len(got), len(all))
	}
}
