package bench

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// Result is out/bench.json.
type Result struct {
	Commit   string    `json:"commit"`
	When     time.Time `json:"when"`
	Rounds   int       `json:"rounds"`
	Machine  Machine   `json:"machine"`
	Figures  []*Figure `json:"figures"`
	Seconds  float64   `json:"seconds"` // that the whole run took
	Complete bool      `json:"complete"`
}

// Machine is what it ran on, and with.
type Machine struct {
	CPUs        int      `json:"cpus"`
	Kernel      string   `json:"kernel"`
	GuestKernel string   `json:"guest_kernel"`
	VMM         string   `json:"vmm"`
	Accel       string   `json:"accel"`
	Containerd  string   `json:"containerd"`
	Godwit      string   `json:"godwit"`
	Go          string   `json:"go"`
	LoadBefore  *float64 `json:"load_before"` // 1 minute; above 0.5 or so the times mean little
	LoadAfter   *float64 `json:"load_after"`  // the run itself keeps about one CPU busy
}

func newResult(rounds int, groups []string) *Result {
	return newResultOf(rounds, figures(groups))
}

func newResultOf(rounds int, all []*Figure) *Result {
	r := &Result{Rounds: rounds, When: time.Now().UTC().Truncate(time.Second), Figures: all}
	for _, f := range r.Figures {
		f.Raw = make([]*float64, rounds)
	}
	return r
}

func (r *Result) figure(name string) *Figure {
	for _, f := range r.Figures {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// Check answers what is missing; nothing is good. No time is ever wrong.
func (r *Result) Check() []string {
	var wrong []string
	for _, f := range r.Figures {
		if f.Median == nil {
			wrong = append(wrong, f.Name+" was not measured in every round")
		}
	}
	m := r.Machine
	for _, v := range []struct{ name, value string }{
		{"commit", r.Commit}, {"machine.kernel", m.Kernel}, {"machine.guest_kernel", m.GuestKernel}, {"machine.vmm", m.VMM},
		{"machine.accel", m.Accel}, {"machine.containerd", m.Containerd}, {"machine.godwit", m.Godwit}, {"machine.go", m.Go},
	} {
		if v.value == "" {
			wrong = append(wrong, v.name+" is not known")
		}
	}
	if m.LoadBefore == nil || m.LoadAfter == nil {
		wrong = append(wrong, "machine.load is not known")
	}
	return wrong
}

// Write stores the result so that no reader sees half of it.
func (r *Result) Write(path string) error {
	r.Complete = len(r.Check()) == 0
	return harness.WriteResult(path, r)
}

// WriteKeys is Write with the median of each figure under its name at the top level too.
func (r *Result) WriteKeys(path string) error {
	r.Complete = len(r.Check()) == 0
	keys := map[string]any{}
	for _, f := range r.Figures {
		keys[f.Name] = f.Median
	}
	return harness.WriteKeys(path, r, keys)
}

// Table prints medians and spreads for people.
func (r *Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "figure\tmedian\tleast\tmost\tunit\tgoal\twhat\n")
	for _, f := range r.Figures {
		least, most := f.spread()
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Name, number(f.Median), number(least), number(most), f.Unit,
			f.verdict(), f.What)
	}
	return t.Flush()
}

func (f *Figure) spread() (least, most *float64) {
	for _, v := range f.Raw {
		if v == nil {
			continue
		}
		if least == nil || *v < *least {
			least = v
		}
		if most == nil || *v > *most {
			most = v
		}
	}
	return least, most
}

func (f *Figure) verdict() string {
	var goal string
	switch {
	case f.Most != nil:
		goal = "<= " + number(f.Most)
	case f.Least != nil:
		goal = ">= " + number(f.Least)
	}
	switch {
	case f.Met == nil:
		return goal
	case *f.Met:
		return goal + " met"
	}
	return goal + " MISSED"
}

// number prints three digits that count.
func number(v *float64) string {
	switch {
	case v == nil:
		return "-"
	case *v >= 100 || *v <= -100:
		return strconv.FormatFloat(*v, 'f', 0, 64)
	}
	return strconv.FormatFloat(*v, 'g', 3, 64)
}
