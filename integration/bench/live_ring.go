package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
)

// ringSizes are the guests of the ring.
var ringSizes = []shape{{"512m", 512, 229, 90}, {"2g", 2048, 640, liveIdle}}

// ringLeast is the RAM of a ground that has room for a guest of 2 GiB: Cloud Hypervisor's own migration fills all of
// the RAM at its destination.
const ringLeast = 5 << 30

// ringFits leaves out the guests that the host has no room for. Their figures stay null.
func ringFits(host uint64) []shape {
	if host < ringLeast {
		return ringSizes[:1]
	}
	return ringSizes
}

// Goals of the ratios to Cloud Hypervisor's own means.
const (
	gapOwnGoal = 0.8
	wakeGoal   = 0.5
	cloneGoal  = 0.5
)

func chBinary() string { return cmp.Or(os.Getenv("GODWIT_CLOUD_HYPERVISOR"), "cloud-hypervisor") }

// ringFigures lists what the ring measures on a VMM. What does not fit it has no figure.
func ringFigures(kind string) []*Figure {
	var all []*Figure
	add := func(name, unit string, source Source, what string, most *float64) {
		all = append(all, &Figure{Name: name, Unit: unit, Source: source, What: what, Most: most})
	}
	for _, s := range ringSizes {
		guest := fmt.Sprintf(", %d MiB of RAM, about %d resident", s.ram, s.resident)
		add("gap_ms_"+s.name, "ms", Guest, "last tick at the source to the first at the destination"+guest, nil)
		add("stop_cont_ms_"+s.name, "ms", Own, "stop to cont of that move", nil)
		if kind == "qemu" {
			continue
		}
		add("gap_vs_ch_own_"+s.name, "x", Ratio, "that gap / the gap of Cloud Hypervisor's own migration", goal(gapOwnGoal))
		add("ch_gap_ms_"+s.name, "ms", Guest, "the same gap of Cloud Hypervisor's own migration, over TCP", nil)
		add("wake_vs_ch_restore_"+s.name, "x", Ratio, "wake / Cloud Hypervisor's own restore", goal(wakeGoal))
		add("wake_ms_"+s.name, "ms", Guest, "wake to the first tick, with the snapshot in the node's cache", nil)
		add("ch_restore_ms_"+s.name, "ms", Guest, "Cloud Hypervisor's own restore by copy to the first tick", nil)
	}
	if kind != "qemu" {
		all = append(all, ringVerifyFigures()...)
	}
	return all
}

// ringVerifyFigures are of a move whose RAM is compared.
func ringVerifyFigures() []*Figure {
	return []*Figure{
		{Name: "differing_pages", Unit: "pages", Source: Kernel, Most: goal(0), in: verifyGroup,
			What: "of both RAM files, compared before cont"},
		{Name: "last_pass_pages", Unit: "pages", Source: Own, Least: goal(1), in: verifyGroup,
			What: "that were sent in the pause of that move"},
	}
}

// ringStartFigures lists what is measured of starts there.
func ringStartFigures() []*Figure {
	return []*Figure{
		{Name: "start_vs_boot", Unit: "x", Source: Ratio, What: "start_ms / boot_ms", Most: goal(cloneGoal)},
		{Name: "start_ms", Unit: "ms", Source: Tool, What: "ctr run to the first output, from a template"},
		{Name: "boot_ms", Unit: "ms", Source: Tool, What: "the same, by a boot"},
	}
}

// RunRing measures moves and wakes in the KVM ring, and Cloud Hypervisor's own. It begins rounds until
// the budget is used. What it does not reach stays null.
func RunRing(ctx context.Context, log io.Writer, most int, budget time.Duration) (*Result, error) {
	return inRing(log, most, ringFigures(harness.VMM()), func(b *liveBench) (int, error) {
		b.step = b.ringRound
		return b.ringMoves(ctx, harness.VMM(), time.Now().Add(budget))
	})
}

// RunRingVerify compares the RAM of a live move, and measures nothing else.
func RunRingVerify(ctx context.Context, log io.Writer, rounds int) (*Result, error) {
	return inRing(log, rounds, ringVerifyFigures(), func(b *liveBench) (int, error) {
		b.step = func(ctx context.Context, _ string, _ []shape) error { return b.verify(ctx, false) }
		return b.ringMoves(ctx, harness.VMM(), time.Now().Add(time.Hour))
	})
}

// RunRingStarts measures starts from a template and boots there, in so many rounds.
func RunRingStarts(ctx context.Context, log io.Writer, rounds int) (*Result, error) {
	return inRing(log, rounds, ringStartFigures(), func(b *liveBench) (int, error) {
		return rounds, b.ringStarts(ctx, rounds)
	})
}

// inRing answers what measure found; measure says how many rounds it made.
func inRing(log io.Writer, rounds int, all []*Figure, measure func(*liveBench) (int, error)) (*Result, error) {
	b := &liveBench{bench: bench{Options: Options{Log: log, Rounds: rounds}, result: newResultOf(rounds, all),
		ballast: map[int]int{}}}
	begun := time.Now()
	b.result.Machine = Machine{VMM: harness.VMM(), Accel: "kvm", LoadBefore: load()}
	made, err := measure(b)
	b.result.cut(made)
	b.result.Seconds = time.Since(begun).Seconds()
	b.result.Machine.LoadAfter = load()
	return b.result, err
}

// ringMoves answers how many rounds it made.
func (b *liveBench) ringMoves(ctx context.Context, kind string, until time.Time) (_ int, err error) {
	b.h, err = harness.Start(ctx, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true,
		Config: b.configure})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.leave(err)) }()
	if b.config != nil {
		return 0, b.config
	}
	b.node, b.there = b.h.Node(0), b.h.Node(1)
	sniffers, err := b.h.SniffAll(livePort)
	if err != nil {
		return 0, err
	}
	defer harness.CloseAll(sniffers)
	b.ports = observer.Hear(sniffers...)
	if err := b.twoNodes(ctx); err != nil {
		return 0, err
	}
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return 0, err
	}
	sizes := ringFits(host.Totalram * uint64(host.Unit))
	for b.round = 0; b.round < b.Rounds; {
		begun := time.Now()
		err := b.step(ctx, kind, sizes)
		b.round++
		took := time.Since(begun)
		b.say("round %d took %s", b.round, took.Round(time.Second))
		if err != nil || time.Now().Add(took).After(until) {
			return b.round, err
		}
	}
	return b.round, nil
}

// leave ends the nodes; after a failure it answers their logs too.
func (b *liveBench) leave(failed error) error {
	if failed != nil {
		failed = b.h.Logs()
	}
	return errors.Join(failed, b.h.Close())
}

// ringStarts times starts from a template and boots of the same image, in turns, on a node of its own.
func (b *liveBench) ringStarts(ctx context.Context, rounds int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	b.h, err = harness.Start(ctx, harness.Options{Registry: harness.PlainHTTP, Godwitd: true, Images: true,
		Config: func(*harness.Node) string { return "[template.boot]\nafter = 1000\n" }}) // it is made by order
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.leave(err)) }()
	b.node = b.h.Node(0)
	data, err := os.ReadFile(b.node.Config)
	if err == nil {
		err = dropIn(b.bootDir(), "[template]\nmode = 'off'\n")
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(b.bootDir(), "config.toml"), data, 0o600)
	}
	if err != nil {
		return err
	}
	begun := time.Now()
	if _, err := b.node.RunGodwit(ctx, "template", "make", "--boot", "--nics", "0"); err != nil {
		return err
	}
	b.say("  the template took %s", time.Since(begun).Round(time.Second))
	seen := 0
	if err := b.saySteps(&seen); err != nil {
		return err
	}
	for b.round = range rounds {
		start, _, err := b.echo(ctx)
		if err == nil {
			err = b.started("clone")
		}
		if err == nil {
			err = b.saySteps(&seen)
		}
		if err != nil {
			return err
		}
		boot, _, err := b.echo(ctx, "--runtime-config-path", filepath.Join(b.bootDir(), "config.toml"))
		if err == nil {
			err = b.started("boot")
		}
		if err == nil {
			err = b.saySteps(&seen)
		}
		if err != nil {
			return err
		}
		b.say("  start from a template %.0f ms, by a boot %.0f ms", ms(start), ms(boot))
		b.note("start_ms", ms(start))
		b.note("boot_ms", ms(boot))
		b.note("start_vs_boot", ms(start)/ms(boot))
	}
	return nil
}

var stepOf = regexp.MustCompile(`msg=step name="?([^"]+?)"? took=(\S+)`)

// saySteps tells the longer steps of the node's shims since the last time.
func (b *liveBench) saySteps(seen *int) error {
	log, err := os.ReadFile(filepath.Join(b.h.Dir, "log", b.node.Name+"-containerd.log"))
	if err != nil {
		return err
	}
	var all []string
	for _, m := range stepOf.FindAllStringSubmatch(string(log[min(*seen, len(log)):]), -1) {
		if took, err := time.ParseDuration(m[2]); err == nil && took >= leastStep {
			all = append(all, fmt.Sprintf("%s %s", m[1], took.Round(time.Millisecond)))
		}
	}
	if *seen > 0 {
		b.say("  steps: %s", strings.Join(all, ", "))
	}
	*seen = len(log)
	return nil
}

// leastStep is of those that are told.
const leastStep = 50 * time.Millisecond

// cut leaves the rounds that there were.
func (r *Result) cut(rounds int) {
	r.Rounds = rounds
	for _, f := range r.Figures {
		if f.Raw = f.Raw[:rounds]; rounds > 0 {
			f.settle()
		}
	}
}

// ringRound is a round: godwit and its rival in turns.
func (b *liveBench) ringRound(ctx context.Context, kind string, sizes []shape) error {
	var steps []func(context.Context) error
	for _, s := range sizes {
		turns := []func(context.Context) error{func(ctx context.Context) error { return b.ringOwn(ctx, s, kind) }}
		if kind != "qemu" {
			turns = append(turns, func(ctx context.Context) error { return b.chOwn(ctx, s, true) })
		}
		for i := range turns {
			steps = append(steps, turns[(i+b.round)%len(turns)])
		}
	}
	if kind != "qemu" {
		steps = append(steps, func(ctx context.Context) error { return b.verify(ctx, false) })
	}
	var all []error
	for _, step := range steps {
		bounded, cancel := context.WithTimeout(ctx, stepTimeout)
		err := step(bounded)
		cancel()
		if err != nil {
			b.say("  a step failed: %v", err)
			all = append(all, err, b.end(ctx))
		}
	}
	for _, s := range sizes {
		b.note("gap_vs_ch_own_"+s.name, b.value("gap_ms_"+s.name)/b.value("ch_gap_ms_"+s.name))
		b.note("wake_vs_ch_restore_"+s.name, b.value("wake_ms_"+s.name)/b.value("ch_restore_ms_"+s.name))
	}
	return errors.Join(all...)
}

// ringOwn times a live move, then sleep and wake where the VM is.
func (b *liveBench) ringOwn(ctx context.Context, s shape, kind string) error {
	if err := b.boot(ctx, s, "auto"); err != nil {
		return err
	}
	w, c, err := b.liveMove(ctx)
	if err != nil {
		return err
	}
	b.note("gap_ms_"+s.name, ms(c.Gap))
	b.note("stop_cont_ms_"+s.name, w.Figures.Downtime)
	if kind == "qemu" {
		return b.end(ctx)
	}
	if _, err := b.there.RunGodwit(ctx, "hibernate", liveVM); err != nil {
		return err
	}
	b.ports.Forget()
	begun := time.Now()
	woken := make(chan error, 1)
	go func() {
		_, err := b.there.RunGodwit(ctx, "wake", liveVM)
		woken <- err
	}()
	took, err := b.beacon(ctx, begun)
	if err := errors.Join(err, <-woken); err != nil {
		return err
	}
	b.say("  wake: %.1f ms to the first beacon", ms(took))
	b.note("wake_ms_"+s.name, ms(took))
	return b.end(ctx)
}
