package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"path/filepath"
	"slices"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

// Builds are two sets of programs and guests on one ground. Each round measures a figure
// with one, then at once with the other; who begins changes from round to round.
type Builds struct {
	Rounds int
	Groups []string // of BuildGroups; empty: all
	Other  string   // directory with the other programs, and their guest below it
	Log    io.Writer
}

// BuildGroups are the groups of figures that two builds are compared by.
var BuildGroups = []string{"run", "boot", "exec", "output", "sleep", "move"}

// pair has the values of one figure: of the build here, and of the other one.
type pair struct {
	name        string
	here, other []float64
}

type builds struct {
	Builds
	sides [2]*liveBench
	pairs []*pair
}

// RunBuilds measures both and prints, for each figure, the median of other / here and the
// interval that has the true median with 95 %.
func RunBuilds(ctx context.Context, o Builds) (err error) {
	if len(o.Groups) == 0 {
		o.Groups = BuildGroups
	}
	c := &builds{Builds: o}
	for i, programs := range []string{"", o.Other} {
		b, end, err := side(ctx, o, programs)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
		c.sides[i] = b
	}
	defer c.print() // also what an interrupted run has
	for round := range o.Rounds {
		for _, group := range o.Groups {
			for i := range 2 {
				i = (i + round) % 2
				if err := c.measure(ctx, i, round, group); err != nil {
					return errors.Join(fmt.Errorf("round %d: %s: %w", round+1, group, err), c.sides[i].h.Logs())
				}
			}
		}
		fmt.Fprintf(o.Log, "bench: round %d of %d\n", round+1, o.Rounds)
	}
	return nil
}

// side starts a node with one build, and a template on it.
func side(ctx context.Context, o Builds, programs string) (_ *liveBench, end func() error, err error) {
	b := &liveBench{bench: bench{Options: Options{Log: o.Log}, result: newResult(o.Rounds, nil), ballast: map[int]int{},
		round: warmup}}
	nodes := 1
	if slices.Contains(o.Groups, "move") {
		nodes = 2
	}
	if b.h, err = harness.Start(ctx, harness.Options{
		Nodes: nodes, Registry: harness.Direct, Godwitd: true, Images: true, Config: b.bench.configure, Programs: programs,
	}); err != nil {
		return nil, nil, err
	}
	end = b.h.Close
	defer func() {
		if err != nil {
			err = errors.Join(err, b.h.Logs(), end())
		}
	}()
	b.node = b.h.Node(0)
	if err := errors.Join(b.config, b.withoutTemplates(), b.importWorkload(ctx)); err != nil {
		return nil, nil, err
	}
	conn, err := b.h.ListenPacket(net.JoinHostPort(harness.Gateway, beaconPort))
	if err != nil {
		return nil, nil, err
	}
	b.watch = observer.Watch(conn)
	end = func() error { return errors.Join(conn.Close(), b.h.Close()) }
	if nodes == 2 {
		b.there = b.h.Node(1)
		sniffers, err := b.h.SniffAll(livePort)
		if err != nil {
			return nil, nil, err
		}
		end = func() error { harness.CloseAll(sniffers); return errors.Join(conn.Close(), b.h.Close()) }
		b.ports = observer.Hear(sniffers...)
		return b, end, b.twoNodes(ctx)
	}
	return b, end, b.ctrRun(ctx)
}

// measure takes the figures of one group from one side.
func (c *builds) measure(ctx context.Context, side, round int, group string) error {
	b := c.sides[side]
	b.round = round
	used, err := b.node.CPU()
	if err != nil {
		return err
	}
	note := func(name string, v float64) { c.note(side, group+"."+name, v) }
	switch group {
	case "run", "boot":
		flags := []string{}
		if group == "boot" {
			flags = []string{"--runtime-config-path", filepath.Join(b.bootDir(), "config.toml")}
		}
		first, _, err := b.echo(ctx, flags...)
		if err != nil {
			return err
		}
		note("first_byte_ms", ms(first))
	case "exec":
		err = b.execs(ctx, note)
	case "output":
		err = b.output(ctx, note)
	case "move":
		err = b.moveOne(ctx, note)
	case "sleep":
		err = b.sleepOne(ctx, note)
	}
	if err != nil {
		return err
	}
	now, err := b.node.CPU()
	if err == nil {
		note("cpu_ms", ms(now-used))
	}
	return err
}

// execs times the first process of a VM that is started with ctr, and the later ones.
func (b *bench) execs(ctx context.Context, note func(string, float64)) error {
	vm := b.name("exec")
	if _, err := b.node.RunCtr(ctx, "run", "-d", "--runtime", runtimeName, images.Busybox, vm, "/bin/sleep",
		"100000"); err != nil {
		return err
	}
	var later []float64
	for i := range 1 + execs {
		_, end, err := b.timed(ctx, "ctr", "--address", b.node.Socket, "task", "exec", "--exec-id", fmt.Sprintf("e%d", i), vm,
			"/bin/echo", mark)
		if err != nil {
			return err
		}
		if i == 0 {
			note("first_ms", ms(end))
		} else {
			later = append(later, ms(end))
		}
	}
	note("later_ms", median(later))
	return b.remove(ctx, vm)
}

// output times what a process of a running VM prints: 32 MiB, three times.
func (b *bench) output(ctx context.Context, note func(string, float64)) error {
	vm := b.name("output")
	if _, err := b.node.RunCtr(ctx, "run", "-d", "--runtime", runtimeName, images.Busybox, vm, "/bin/sleep",
		"100000"); err != nil {
		return err
	}
	var all []float64
	for i := range 4 {
		cmd := b.node.Command(ctx, "ctr", "--address", b.node.Socket, "task", "exec", "--exec-id", fmt.Sprintf("o%d", i), vm,
			"/bin/dd", "if=/dev/zero", "bs=256k", "count=128")
		begun := time.Now()
		if err := b.node.Enter(cmd.Start); err != nil {
			return err
		}
		if err := cmd.Wait(); err != nil {
			return err
		}
		if i > 0 { // the code of the first is translated meanwhile
			all = append(all, ms(time.Since(begun)))
		}
	}
	note("32_mib_ms", median(all))
	if err := b.terminal(ctx, vm, note); err != nil {
		return err
	}
	return b.remove(ctx, vm)
}

// moveOne times a live move by the guest's ticks and by godwit's own word.
func (b *liveBench) moveOne(ctx context.Context, note func(string, float64)) error {
	if err := b.boot(ctx, gapSizes[0], "auto"); err != nil {
		return err
	}
	begun := time.Now()
	w, c, err := b.liveMove(ctx)
	if err != nil {
		return err
	}
	f := w.Figures
	note("gap_ms", ms(c.Gap))
	note("stop_to_cont_ms", f.Downtime)
	note("vote_commit_run_ms", f.Vote+f.Commit+f.Run)
	note("order_to_end_ms", ms(time.Since(begun)))
	return b.end(ctx)
}

// sleepOne times the pause of a hibernate and a wake.
func (b *bench) sleepOne(ctx context.Context, note func(string, float64)) error {
	vm, size := b.name("sleep"), sizes[0]
	if err := b.bootProbe(ctx, vm, size); err != nil {
		return err
	}
	_, resident, err := b.node.RAM()
	if err != nil {
		return err
	}
	note("resident_mib", float64(resident)/mib)
	if _, err := b.hibernate(ctx, vm, func(s string) string { return s }); err != nil {
		return err
	}
	b.watch.Mark(vm)
	begun := time.Now()
	if _, err := b.node.RunGodwit(ctx, "wake", vm); err != nil {
		return err
	}
	sign, err := b.watch.After(ctx, vm)
	if err != nil {
		return err
	}
	note("wake_ms", ms(sign.At.Sub(begun)))
	return b.remove(ctx, vm)
}

func (c *builds) note(side int, name string, v float64) {
	i := slices.IndexFunc(c.pairs, func(p *pair) bool { return p.name == name })
	if i < 0 {
		i = len(c.pairs)
		c.pairs = append(c.pairs, &pair{name: name})
	}
	if p := c.pairs[i]; side == 0 {
		p.here = append(p.here, v)
	} else {
		p.other = append(p.other, v)
	}
}

func (c *builds) print() {
	fmt.Fprintf(c.Log, "\n%-22s %10s %10s  other / here (95 %%)\n", "figure", "here", "other")
	for _, p := range c.pairs {
		var ratios []float64
		for i := range min(len(p.here), len(p.other)) {
			ratios = append(ratios, p.other[i]/p.here[i])
		}
		if len(ratios) == 0 {
			continue
		}
		low, high := interval(ratios)
		fmt.Fprintf(c.Log, "%-22s %10.1f %10.1f  %.3f (%.3f to %.3f)\n", p.name, median(p.here), median(p.other),
			median(ratios), low, high)
		fmt.Fprintf(c.Log, "    ratios %.3f\n", ratios)
	}
}

// interval of the median with at least 95 %, whatever the distribution: the values of that
// rank from below and from above, by the binomial distribution. Of less than six values
// it is all of them.
func interval(values []float64) (low, high float64) {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	below, term, rank := 0.0, math.Pow(0.5, float64(n)), 0
	for k := 0; k < n/2; k++ {
		if below += term; below > 0.025 {
			break
		}
		rank, term = k, term*float64(n-k)/float64(k+1)
	}
	return s[rank], s[n-1-rank]
}
