package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

// A VM of pauseRAM that has about so many MiB resident.
var pauseSizes = []int{230, 1300}

const (
	pauseRAM  = 2048
	pauseIdle = 150 // MiB that such a VM has without ballast
	// Goals of a VM that is tracked, in ms.
	pauseTrackedGoal = 20
	pauseFlatGoal    = 15
)

// Ways of tracking, by the name of the figure.
var pauseWays = []struct{ name, way string }{{"tracked", "auto"}, {"content", "content"}}

// pauseName: those of the larger size that have a goal go by the names that goals have.
func pauseName(mib int, s string) string {
	if mib == pauseSizes[1] && (s == "tracked" || s == "content") {
		return "pause_ms_" + s
	}
	return fmt.Sprintf("%s%d.%s", pauseGroup, mib, s)
}

const pauseFlat = "pause_flat_extra_ms"

// contentGoal is what a comparison of so many MiB may take on all cores.
func contentGoal(mib int) float64 {
	return pauseTrackedGoal + float64(mib)/(7*1024*float64(runtime.GOMAXPROCS(0)))*1000
}

func pauseFigures() []*Figure {
	var all []*Figure
	for i, mib := range pauseSizes {
		name := func(s string) string { return pauseName(mib, s) }
		tracked := &Figure{Name: name("tracked"), Unit: "ms", Source: Own,
			What: "pause_ms where the kernel says what was written", in: pauseGroup}
		content := &Figure{Name: name("content"), Unit: "ms", Source: Own, What: "pause_ms where every page is compared",
			in: pauseGroup}
		if i > 0 {
			tracked.Most, content.Most = goal(pauseTrackedGoal), goal(contentGoal(mib))
		}
		all = append(all, &Figure{Name: name("resident"), Unit: "MiB", Source: Kernel,
			What: "RAM in use, of the file on tmpfs"}, tracked, content,
			&Figure{Name: name("stop"), Unit: "ms", Source: Own, What: "of tracked: until the VMM says that it stands"},
			&Figure{Name: name("save"), Unit: "ms", Source: Own, What: "of tracked: the device state, beside the last pass"},
			&Figure{Name: name("command"), Unit: "ms", Source: Tool, What: "godwit hibernate, tracked, to its end"})
	}
	return append(all, &Figure{
		Name: pauseFlat, Unit: "ms", Source: Own, Most: goal(pauseFlatGoal), in: pauseGroup,
		What: fmt.Sprintf("tracked at %d MiB - at %d", pauseSizes[1], pauseSizes[0]),
	})
}

// pause times how long a VM of that size stands still in a hibernate.
func (b *bench) pause(ctx context.Context, size int) error {
	for _, w := range pauseWays {
		if err := b.pauseOf(ctx, size, w.name, w.way); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) pauseOf(ctx context.Context, size int, figure, way string) error {
	dir := filepath.Join(b.h.Dir, way)
	data, err := os.ReadFile(b.node.Config)
	if err == nil {
		err = dropIn(dir, "[guest]\ncmdline = '"+noBounce+"'\n[template]\nmode = 'off'\n[worker]\ntracking = '"+way+"'\n")
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.toml"), data, 0o600)
	}
	if err != nil {
		return err
	}
	vm := b.name(fmt.Sprintf("pause%d%s", size, figure))
	b.watch.Mark(vm)
	if _, err := b.node.RunCtr(ctx, "run", "-d", "--cni", "--runtime", runtimeName, "--runtime-config-path",
		filepath.Join(dir, "config.toml"),
		"--annotation", fmt.Sprintf("godwit.dev/memory=%dMiB", pauseRAM), images.Probe, vm,
		"/bin/probe", "-beacon", net.JoinHostPort(harness.Gateway, beaconPort), "-interval", beaconEvery.String(),
		"-fill", fmt.Sprint(noise), "-soft", fmt.Sprint(max(0, size-pauseIdle))); err != nil {
		return err
	}
	if _, err := b.watch.After(ctx, vm); err != nil {
		return err
	}
	if err := observer.Pause(ctx, settle); err != nil {
		return err
	}
	_, resident, err := b.node.RAM()
	if err != nil {
		return err
	}
	if err := b.pauseFigures(ctx, vm, size, figure, way, float64(resident)/mib); err != nil {
		return err
	}
	if _, err := b.node.RunCtr(ctx, "container", "rm", vm); err != nil {
		return err
	}
	if _, err := b.node.RunGodwit(ctx, "rm", "--force", vm); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(b.h.Dir, "registry/docker/registry/v2"))
}

func (b *bench) pauseFigures(ctx context.Context, vm string, size int, figure, way string, resident float64) error {
	begun := time.Now()
	out, err := b.node.RunGodwit(ctx, "hibernate", "-o", "json", vm)
	if err != nil {
		return err
	}
	took := time.Since(begun)
	var own struct {
		Figures struct {
			PauseMS  float64 `json:"pauseMs"`
			StopMS   float64 `json:"stopMs"`
			SaveMS   float64 `json:"saveMs"`
			Tracking string  `json:"tracking"`
			Passes   []any   `json:"passes"`
		} `json:"figures"`
	}
	if err := json.Unmarshal([]byte(out), &own); err != nil {
		return fmt.Errorf("hibernate %s: %w", vm, err)
	}
	f := own.Figures
	b.say("%s: %.0f MiB resident, tracked by %s, pause %.1f ms (stop %.1f, save %.1f), passes %v", vm, resident,
		f.Tracking, f.PauseMS, f.StopMS, f.SaveMS, f.Passes)
	if tracked := f.Tracking != "content"; tracked != (way == "auto") {
		return fmt.Errorf("hibernate %s: tracked by %s where %s was asked for", vm, f.Tracking, way)
	}
	b.note(pauseName(size, figure), f.PauseMS)
	if way == "auto" {
		b.note(pauseName(size, "resident"), resident)
		b.note(pauseName(size, "command"), ms(took))
		b.note(pauseName(size, "stop"), f.StopMS)
		b.note(pauseName(size, "save"), f.SaveMS)
	}
	return nil
}
