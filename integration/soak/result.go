package soak

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// Result is out/soak.json.
type Result struct {
	Seed       uint64                              `json:"seed"`
	Commit     string                              `json:"commit"`
	Versions   map[string]string                   `json:"versions"`
	Mutation   string                              `json:"mutation,omitempty"` // the fault that was built in
	VMs        int                                 `json:"vms"`
	Pods       int                                 `json:"pods"`
	Seconds    float64                             `json:"seconds"` // of the schedule, with its judgements
	Rounds     int                                 `json:"rounds"`  // that ended with a judgement
	Steps      int                                 `json:"steps"`
	Operations int                                 `json:"operations"` // verbs that met a VM or node
	Failed     int                                 `json:"failed"`     // of those: with an error
	Faults     int                                 `json:"faults"`     // that met something
	Missed     int                                 `json:"missed"`     // steps that had no VM to act on
	Verbs      map[string]int                      `json:"verbs_seen"`
	Succeeded  map[string]int                      `json:"verbs_succeeded"`
	Kinds      map[string]int                      `json:"faults_seen"`
	Violations int                                 `json:"violations"`
	LeftBehind int                                 `json:"left_behind"`
	Growth     int                                 `json:"growth"` // daemons that hold more at the end than at the begin
	Lost       int                                 `json:"lost"`   // VMs that the schedule has ended
	Checks     int                                 `json:"checks"` // VMs that were found as they have to be
	Lines      int                                 `json:"tcp_lines"`
	Wrong      []string                            `json:"violations_told"`
	Left       []string                            `json:"left_behind_told"`
	Grown      []string                            `json:"growth_told"`
	Before     map[string]map[string]harness.Usage `json:"usage_before"`
	After      map[string]map[string]harness.Usage `json:"usage_after"`
	Shims      harness.Usage                       `json:"usage_shims"` // the most that one held at a judgement
	LastSteps  []string                            `json:"last_steps"`  // before the first violation
	KeptIn     string                              `json:"kept_in,omitempty"`

	mu sync.Mutex
}

func newResult(opts Options) *Result {
	return &Result{Seed: opts.Seed, Mutation: opts.Mutation, VMs: opts.VMs, Pods: opts.Pods, Verbs: map[string]int{},
		Succeeded: map[string]int{}, Kinds: map[string]int{},
		Before: map[string]map[string]harness.Usage{}, After: map[string]map[string]harness.Usage{}, Wrong: []string{},
		Left: []string{}, Grown: []string{}, LastSteps: []string{}}
}

func (r *Result) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// perMinute is how many of all names each must be seen in half an hour.
const (
	leastSeen      = 3
	leastPerMinute = 4
	whole          = 30 * time.Minute
)

// Err says what is wrong with a run that draws from these names; without faults, there are none. One of half an hour or
// more has to have met enough, too.
func (r *Result) Err(verbs, faults []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	wrong := slices.Concat(r.Wrong, prefixed("left behind: ", r.Left), prefixed("grown: ", r.Grown))
	long := time.Duration(r.Seconds * float64(time.Second))
	if r.Operations == 0 || r.Faults == 0 && len(faults) > 0 || r.Checks == 0 {
		wrong = append(wrong, fmt.Sprintf("%d operations, %d faults, %d VMs that were judged: nothing is shown", r.Operations,
			r.Faults, r.Checks))
	}
	if long >= whole {
		wrong = append(wrong, rare(r.Verbs, verbs)...)
		wrong = append(wrong, rare(r.Kinds, faults)...)
		if n := float64(r.Operations) / long.Minutes(); n < leastPerMinute {
			wrong = append(wrong, fmt.Sprintf("%.1f operations a minute, %d are the least", n, leastPerMinute))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("seed %d: %s\nthe last steps before:\n  %s\nkept in %s", r.Seed, strings.Join(wrong, "\n"),
		strings.Join(r.LastSteps, "\n  "), r.KeptIn)
}

func rare(seen map[string]int, names []string) (wrong []string) {
	for _, name := range names {
		if seen[name] < leastSeen {
			wrong = append(wrong, fmt.Sprintf("%s was seen %d times, %d are the least", name, seen[name], leastSeen))
		}
	}
	return wrong
}

func prefixed(prefix string, all []string) (out []string) {
	for _, s := range all {
		out = append(out, prefix+s)
	}
	return out
}
