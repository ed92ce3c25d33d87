package scale

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// Result is out/scale.json. Each figure is a key of its own too, in addition to its samples.
type Result struct {
	Commit     string             `json:"commit"`
	When       time.Time          `json:"when"`
	Nodes      int                `json:"nodes"`
	VMs        int                `json:"vms"`
	Machine    Machine            `json:"machine"`
	Figures    []*Figure          `json:"figures"`
	Violations *int               `json:"violations"`
	Seen       []string           `json:"violations_seen"`
	Notes      map[string]float64 `json:"notes"` // what explains a figure and is none
	Seconds    float64            `json:"seconds"`
	Complete   bool               `json:"complete"`
}

// Machine is what it ran on, and with.
type Machine struct {
	CPUs       int      `json:"cpus"`
	Kernel     string   `json:"kernel"`
	Go         string   `json:"go"`
	Godwit     string   `json:"godwit"`
	Etcd       string   `json:"etcd"`
	LoadBefore *float64 `json:"load_before"`
	LoadAfter  *float64 `json:"load_after"`
}

// Figure is one of them: the worse of what each store gave.
type Figure struct {
	Name  string               `json:"name"`
	Unit  string               `json:"unit"`
	What  string               `json:"what"`
	Value *float64             `json:"value"` // null: it was not measured everywhere
	By    map[string]float64   `json:"by"`    // store
	Raw   map[string][]float64 `json:"raw"`
	Most  *float64             `json:"goal_at_most,omitempty"`
	Least *float64             `json:"goal_at_least,omitempty"`
	Met   *bool                `json:"goal_met,omitempty"`
	group string
	of    []string // the stores that it is measured with
}

func goal(v float64) *float64 { return &v }

// The groups of figures, which can be measured alone.
const (
	idleGroup   = "idle"
	stormGroup  = "storm"
	claimGroup  = "claim"
	growthGroup = "growth"
	hostGroup   = "host"
)

// Groups of figures.
var Groups = []string{idleGroup, stormGroup, claimGroup, growthGroup, hostGroup}

// The stores.
const (
	ofBolt = "bbolt"
	ofEtcd = "etcd"
	ofHost = "host"
)

func figures(groups []string) []*Figure {
	both := []string{ofBolt, ofEtcd}
	all := []*Figure{
		{Name: "idle_cores", Unit: "cores", What: "all controllers, and etcd, while the rounds of all nodes run",
			Most: goal(0.1), group: idleGroup, of: both},
		{Name: "drops_per_debt", Unit: "x", What: "deletions that nodes have asked their store for, by deletions that " +
			"were decided", Most: goal(1), Least: goal(1), group: idleGroup, of: both},
		{Name: "etcd_bytes_per_node_day", Unit: "B",
			What: "what the keys and their history grow by, before a compaction, a node and day", Most: goal(64 << 10),
			group: idleGroup, of: []string{ofEtcd}},
		{Name: "claim_p99_ratio", Unit: "x", What: "p99 of claims of 20 nodes while the others come back, by the same " +
			"without", Most: goal(5), group: stormGroup, of: both},
		{Name: "storm_rss_mib", Unit: "MiB", What: "the most memory of a controller while the nodes come back",
			Most: goal(256), group: stormGroup, of: both},
		{Name: "storm_s", Unit: "s", What: "until each node that comes back has told that it lives and done a round",
			Most: goal(20), group: stormGroup, of: both},
		{Name: "claims_speedup_64", Unit: "x", What: "64 claims one after the other, by 64 at once; each sync costs 5 ms",
			Least: goal(8), group: claimGroup, of: both},
		{Name: "round_growth_10x", Unit: "x", What: "a node's round with ten times the VMs elsewhere", Most: goal(1.5),
			group: growthGroup, of: both},
		{Name: "ps_growth_10x", Unit: "x", What: "a list of all VMs with ten times as many", Most: goal(12),
			group: growthGroup, of: both},
		{Name: "host_pss_mib_per_vm", Unit: "MiB", What: "shim, holder and share of godwitd, 50 real VMs (Pss)",
			Most: goal(8), group: hostGroup, of: []string{ofHost}},
	}
	return slices.DeleteFunc(all, func(f *Figure) bool { return !slices.Contains(groups, f.group) })
}

// set notes what one store gave, from these samples; the worse one counts.
func (r *Result) set(name, store string, v float64, raw ...float64) {
	for _, f := range r.Figures {
		if f.Name != name || math.IsNaN(v) || math.IsInf(v, 0) {
			continue // stays null, which fails
		}
		if f.By == nil {
			f.By, f.Raw = map[string]float64{}, map[string][]float64{}
		}
		f.By[store], f.Raw[store] = v, raw
		if len(f.By) < len(f.of) {
			continue
		}
		worst := slices.Max(slices.Collect(maps.Values(f.By)))
		if f.Most == nil {
			worst = slices.Min(slices.Collect(maps.Values(f.By)))
		}
		met := (f.Most == nil || worst <= *f.Most) &&
			(f.Least == nil || slices.Min(slices.Collect(maps.Values(f.By))) >= *f.Least)
		f.Value, f.Met = &worst, &met
	}
}

// Check answers what is missing or wrong; nothing is good. No figure is ever too large.
func (r *Result) Check() []string {
	var wrong []string
	for _, f := range r.Figures {
		if f.Value == nil {
			wrong = append(wrong, f.Name+" was not measured with each store")
		}
	}
	m := r.Machine
	for _, v := range []struct{ name, value string }{{"commit", r.Commit}, {"machine.kernel", m.Kernel},
		{"machine.go", m.Go}, {"machine.godwit", m.Godwit}, {"machine.etcd", m.Etcd}} {
		if v.value == "" {
			wrong = append(wrong, v.name+" is not known")
		}
	}
	if m.LoadBefore == nil || m.LoadAfter == nil {
		wrong = append(wrong, "machine.load is not known")
	}
	if r.Violations == nil {
		wrong = append(wrong, "violations were not looked for")
	} else if *r.Violations > 0 {
		wrong = append(wrong, r.Seen...)
	}
	return wrong
}

// Write stores the result so that a reader never sees half of it.
func (r *Result) Write(path string) error {
	r.Complete = len(r.Check()) == 0
	keys := map[string]any{}
	for _, f := range r.Figures {
		keys[f.Name] = f.Value
	}
	return harness.WriteKeys(path, r, keys)
}

// Table prints the figures for people.
func (r *Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "figure\tvalue\tby store\tgoal\tunit\twhat\n")
	for _, f := range r.Figures {
		value, want := "-", ""
		if f.Value != nil {
			value = fmt.Sprintf("%.3g", *f.Value)
		}
		switch {
		case f.Most != nil && f.Least != nil:
			want = fmt.Sprintf("%g", *f.Most)
		case f.Most != nil:
			want = fmt.Sprintf("<= %g", *f.Most)
		case f.Least != nil:
			want = fmt.Sprintf(">= %g", *f.Least)
		}
		if f.Met != nil && !*f.Met {
			want += " MISSED"
		}
		fmt.Fprintf(t, "%s\t%s\t%v\t%s\t%s\t%s\n", f.Name, value, f.By, want, f.Unit, f.What)
	}
	return t.Flush()
}
