package bench

import (
	"fmt"
	"slices"
)

// The groups of figures of moves.
const (
	gapGroup    = "gap"
	stopGroup   = "stop"
	verifyGroup = "verify"
	coldGroup   = "cold"
)

// LiveGroups of figures.
var LiveGroups = []string{gapGroup, stopGroup, verifyGroup, coldGroup}

// shape is a guest: its RAM, about what of it is resident, and what is where it holds nothing, in MiB.
type shape struct {
	name                string
	ram, resident, idle int
}

// liveIdle is what is resident of a VM of 2 or 4 GiB that holds nothing.
const liveIdle = 135

var (
	gapSizes  = []shape{{"512m", 512, 229, 90}, {"2g", 2048, 640, liveIdle}}
	gapLimits = []int{300, 10} // downtime-limit of QEMU's own migration, in ms
)

func rivalName(s shape, limit int) string { return fmt.Sprintf("qemu_n%d_gap_ms_%s", limit, s.name) }

func limitName(s shape, limit int) string { return fmt.Sprintf("qemu_n%d_limit_ms_%s", limit, s.name) }

// Goals of moves, for the median on an idle machine.
const (
	gapN300Goal  = 0.6
	gapN10Goal   = 2
	dirtyGoal    = 50
	flatLiveGoal = 15
	gateGoal     = 10
	contentFixed = 30
)

// Goals of a cold move of a small VM, in ms.
var coldGoals = []struct {
	name, what string
	most       float64
}{
	{"cold_accepted_ms", "order of a cold move to its durable answer", 3000},
	{"cold_frozen_ms", "order to the last tick at the source", 6000},
	{"cold_placed_ms", "order to the task that containerd lists at the destination", 12000},
	{"cold_ready_ms", "order to the first tick at the destination", 15000},
}

// liveFigures lists everything that a run of these groups must measure.
func liveFigures(groups []string) []*Figure {
	var all []*Figure
	add := func(group string, f *Figure) {
		f.in = group
		all = append(all, f)
	}
	for _, s := range gapSizes {
		guest := fmt.Sprintf("%d MiB of RAM, about %d resident", s.ram, s.resident)
		add(gapGroup, &Figure{Name: "gap_vs_n300_" + s.name, Unit: "x", Source: Ratio,
			What: "gap of a live move / gap of QEMU's own, downtime-limit 300 ms", Most: goal(gapN300Goal)})
		add(gapGroup, &Figure{Name: "gap_vs_n10_" + s.name, Unit: "x", Source: Ratio, What: "the same, downtime-limit 10 ms",
			Most: goal(gapN10Goal)})
		add(gapGroup, &Figure{Name: "gap_ms_" + s.name, Unit: "ms", Source: Guest, What: "last tick at the source to the " +
			"first at the destination, " + guest})
		add(gapGroup, &Figure{Name: "resident_" + s.name, Unit: "MiB", Source: Kernel, What: "RAM in use of that guest"})
		add(gapGroup, &Figure{Name: "own_stop_cont_ms_" + s.name, Unit: "ms", Source: Own, What: "stop to cont of that move"})
		for _, limit := range gapLimits {
			add(gapGroup, &Figure{Name: rivalName(s, limit), Unit: "ms", Source: Guest,
				What: "the same gap of QEMU's own migration of the same guest, over loopback"})
			add(gapGroup, &Figure{Name: limitName(s, limit), Unit: "ms", Source: Tool,
				What: "downtime-limit that it ended with: doubled each 10 s that it finds no end"})
		}
		add(gapGroup, &Figure{Name: "qemu_resident_" + s.name, Unit: "MiB", Source: Kernel, What: "RAM in use of its guest"})
	}
	add(gapGroup, &Figure{Name: "gate_ms", Unit: "ms", Source: Own, What: "vote, commit and run with their records, of " +
		"the move of " + gapSizes[0].name, Most: goal(gateGoal)})
	add(stopGroup, &Figure{Name: "stop_cont_ms_4g_dirty200", Unit: "ms", Source: Own,
		What: "stop to cont, 4 GiB of RAM, 1.3 GiB resident, 200 MiB/s dirtied", Most: goal(dirtyGoal)})
	add(stopGroup, &Figure{Name: "flat_extra_ms", Unit: "ms", Source: Own, What: "stop_cont_ms_2g_1300 - " +
		"stop_cont_ms_2g_230", Most: goal(flatLiveGoal)})
	add(stopGroup, &Figure{Name: "stop_cont_ms_2g_230", Unit: "ms", Source: Own,
		What: "stop to cont, about 230 MiB resident, tracked"})
	add(stopGroup, &Figure{Name: "stop_cont_ms_2g_1300", Unit: "ms", Source: Own,
		What: "stop to cont, about 1300 MiB resident, tracked"})
	add(stopGroup, &Figure{Name: "content_stop_cont_ms_2g", Unit: "ms", Source: Own, What: "the same, every page compared",
		Most: goal(contentGoal(contentResident) - pauseTrackedGoal + contentFixed)})
	for _, load := range []struct{ suffix, what string }{{"", ""}, {"_direct", ", with a load of O_DIRECT reads"}} {
		add(verifyGroup, &Figure{Name: "differing_pages" + load.suffix, Unit: "pages", Source: Kernel,
			What: "of both RAM files, compared before cont" + load.what, Most: goal(0)})
		add(verifyGroup, &Figure{Name: "last_pass_pages" + load.suffix, Unit: "pages", Source: Own,
			What: "that were sent in the pause of those moves", Least: goal(1)})
	}
	for _, c := range coldGoals {
		add(coldGroup, &Figure{Name: c.name, Unit: "ms", Source: Guest, What: c.what, Most: goal(c.most)})
	}
	return slices.DeleteFunc(all, func(f *Figure) bool { return !slices.Contains(groups, f.group()) })
}

// Wrong answers what no machine excuses: pages that differ, and comparisons that compared
// nothing, in whatever round.
func (r *Result) Wrong() []string {
	var wrong []string
	for _, f := range r.Figures {
		for round, v := range f.Raw {
			switch {
			case v == nil || f.in != verifyGroup:
			case f.Most != nil && *v > *f.Most || f.Least != nil && *v < *f.Least:
				wrong = append(wrong, fmt.Sprintf("%s is %v in round %d", f.Name, *v, round+1))
			}
		}
	}
	return wrong
}
