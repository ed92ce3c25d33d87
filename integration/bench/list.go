package bench

import (
	"fmt"
	"slices"
	"strings"
)

// sizes of RAM that a pause is compared at, in MiB. The first is what the others are
// divided by.
var sizes = []int{256, 1024, 4096}

// Goals. They are for the median on an idle machine and fail nothing.
const (
	startGoal  = 200 // ms more than bare QEMU
	cycleGoal  = 1.3 // times bare QEMU's boot, from create to delete
	pauseGoal  = 1.3 // times the pause at the smallest RAM
	shimGoal   = 25  // MiB
	daemonGoal = 40  // MiB
)

func goal(v float64) *float64 { return &v }

// The groups of figures that can be measured alone.
const (
	startGroup = "start"
	execGroup  = "exec"
	fleetGroup = "fleet"
	sleepGroup = "sleep"
	pauseGroup = "pause"

	snapshotGroup = "snapshot"
	podsGroup     = "pods"
)

// Groups of figures.
var Groups = []string{startGroup, execGroup, fleetGroup, sleepGroup, pauseGroup, snapshotGroup, podsGroup}

// group of a figure, by its name.
func (f *Figure) group() string {
	name, _, _ := strings.Cut(f.Name, ".")
	switch {
	case f.in != "":
		return f.in
	case name == "rss" && strings.HasPrefix(f.Name, "rss.shim"):
		return execGroup
	case name == "rss":
		return sleepGroup
	case strings.HasPrefix(name, sleepGroup):
		return sleepGroup
	case strings.HasPrefix(name, pauseGroup):
		return pauseGroup
	}
	return name
}

// figures lists everything that a run of these groups must measure, so that what is
// missing shows.
func figures(groups []string) []*Figure {
	all := []*Figure{
		{Name: "start.ctr_run", Unit: "ms", Source: Guest, What: "ctr run to the container's first output, from a template"},
		{Name: "start.bare", Unit: "ms", Source: Guest, What: "bare QEMU, same kernel, to its first user-space line"},
		{Name: "start.extra", Unit: "ms", Source: Guest, What: "start.ctr_run - start.bare", Most: goal(startGoal)},
		{Name: "start.boot", Unit: "ms", Source: Guest, What: "the same without templates: the first start of a shape"},
		{Name: "start.boot_extra", Unit: "ms", Source: Guest, What: "start.boot - start.bare"},
		{Name: "start.cycle", Unit: "ms", Source: Tool, What: "ctr run --rm: from create to delete, its end"},
		{Name: "start.cycle_ratio", Unit: "x", Source: Ratio, What: "start.cycle / start.bare", Most: goal(cycleGoal)},
		{Name: "exec.ctr", Unit: "ms", Source: Guest, What: "ctr task exec to the end of a process that prints a line"},
		{Name: "exec.ctr_only", Unit: "ms", Source: Tool, What: "ctr version: ctr and containerd without a guest"},
		{Name: "exec.agent", Unit: "ms", Source: Guest, What: "agent: start a process, read its line, its exit, remove it"},
		{Name: "exec.agent_call", Unit: "ms", Source: Guest, What: "agent: one call and its answer"},
		{Name: "exec.bare", Unit: "ms", Source: Guest, What: "bare QEMU: a shell on the serial port runs the same program"},
		{Name: "exec.ratio", Unit: "x", Source: Ratio, What: "(exec.ctr - exec.ctr_only) / exec.bare"},
		{Name: "rss.shim", Unit: "MiB", Source: Kernel, What: "Rss of the shim of a running VM", Most: goal(shimGoal)},
		{Name: "rss.shim_pss", Unit: "MiB", Source: Kernel, What: "the same, shared pages divided (Pss)"},
		{Name: "rss.godwitd", Unit: "MiB", Source: Kernel, What: "Rss of godwitd after hibernate and wake",
			Most: goal(daemonGoal)},
		{Name: "rss.godwitd_pss", Unit: "MiB", Source: Kernel, What: "the same, shared pages divided (Pss)"},
	}
	all = append(all, fleetFigures()...)
	for i, mib := range sizes {
		all = append(all, sleepFigures(mib, i > 0)...)
	}
	all = slices.Concat(all, pauseFigures(), snapshotFigures(), podFigures())
	return slices.DeleteFunc(all, func(f *Figure) bool { return !slices.Contains(groups, f.group()) })
}

func fleetFigures() []*Figure {
	vms := fmt.Sprintf("%d VMs of %d MiB run", fleetSize, fleetRAM)
	return []*Figure{
		{Name: "fleet.shim", Unit: "MiB", Source: Kernel, What: "Rss of the largest shim while " + vms, Most: goal(shimGoal)},
		{Name: "fleet.shim_pss", Unit: "MiB", Source: Kernel, What: "the same, shared pages divided (Pss)"},
		{Name: "fleet.godwitd", Unit: "MiB", Source: Kernel, What: "Rss of godwitd while " + vms, Most: goal(daemonGoal)},
		{Name: "fleet.godwitd_pss", Unit: "MiB", Source: Kernel, What: "the same, shared pages divided (Pss)"},
	}
}

func sleepFigures(mib int, compared bool) []*Figure {
	name := func(s string) string { return sleepName(mib, s) }
	all := []*Figure{
		{Name: name("resident"), Unit: "MiB", Source: Kernel, What: "RAM in use, of the file on tmpfs"},
		{Name: name("pause"), Unit: "ms", Source: Wire, What: "last beacon to the end of the last blob"},
		{Name: name("pause_own"), Unit: "ms", Source: Own, What: "godwit's pause_ms: stop to the last page read"},
		{Name: name("durable"), Unit: "ms", Source: Wire, What: "end of the last blob to the accepted manifest"},
		{Name: name("wake"), Unit: "ms", Source: Wire, What: "godwit wake to the first beacon"},
		{Name: name("hibernate_rate"), Unit: "GB/s/core", Source: Kernel, What: "resident bytes / CPU seconds of the worker"},
		{Name: name("compress_rate"), Unit: "GB/s/core", Source: Kernel, What: "the same bytes / CPU seconds of zstd -1"},
		{Name: name("hibernate_ratio"), Unit: "x", Source: Ratio, What: "hibernate_rate / compress_rate"},
		{Name: name("wake_rate"), Unit: "GB/s/core", Source: Kernel, What: "resident bytes / CPU seconds of the workers"},
		{Name: name("expand_rate"), Unit: "GB/s/core", Source: Kernel, What: "the same bytes / CPU seconds of zstd -d"},
		{Name: name("wake_ratio"), Unit: "x", Source: Ratio, What: "wake_rate / expand_rate"},
	}
	if compared {
		all = append(all, &Figure{
			Name: name("pause_ratio"), Unit: "x", Source: Ratio, Most: goal(pauseGoal),
			What: fmt.Sprintf("pause / pause at %d MiB", sizes[0]),
		})
	}
	return all
}

func sleepName(mib int, s string) string { return fmt.Sprintf("sleep%d.%s", mib, s) }
