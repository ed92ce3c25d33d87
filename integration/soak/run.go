// Package soak runs VMs on three nodes with three controllers. Meanwhile a schedule that a seed draws does all that
// users do, and all that hosts, links, disks, registries and clocks do. An observer outside judges: no VM ever runs
// twice, none is lost, and nothing is left.
package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/integration/harness"
)

// Options of a run.
type Options struct {
	Time      time.Duration // of the schedule: the round in which it is over is the last one
	Seed      uint64
	VMs       int
	DayEach   int    // so many steps lie between two of dayVerbs; 0: dayEach
	Pods      int    // that CRI makes; they come on top of VMs
	PodEach   int    // so many steps lie between two of podVerbs; 0: podEach
	Mutation  string // a fault to build back in; empty: none
	KeepAll   bool   // the logs are kept although nothing was wrong
	Keep      string // directory for the logs at a violation
	Faultless bool   // steps that would be faults are missed
	Fast      bool   // the first violation ends the run
	Log       func(format string, args ...any)
}

// Run makes the nodes, runs the schedule and judges. The error is of the harness; what was found is in
// the result, see Check.
func Run(ctx context.Context, opts Options) (result *Result, err error) {
	result = newResult(opts)
	root, err := harness.Root()
	if err != nil {
		return result, err
	}
	dir, err := os.MkdirTemp("", "gwsoak")
	if err != nil {
		return result, err
	}
	defer os.RemoveAll(dir)
	p, err := build(ctx, root, dir, opts.Mutation)
	if err != nil {
		return result, err
	}
	result.Commit, result.Versions = described(ctx, root)
	w, err := newWorld(ctx, opts, result, p)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.bootAll(ctx); err != nil {
		w.KeepIn(opts.Keep)
		return result, err
	}
	begun := time.Now()
	err = w.play(ctx, begun)
	result.Seconds = time.Since(begun).Seconds()
	if errors.Is(err, errViolated) {
		return result, nil
	}
	if err == nil {
		err = w.end(ctx)
	}
	if err != nil || opts.KeepAll {
		w.KeepIn(opts.Keep)
	}
	return result, err
}

// Check says what is wrong with a run of these options.
func (r *Result) Check(opts Options) error {
	names, _ := verbNames()
	names = append(names, beginsAnew...)
	if r.Pods > 0 {
		names = append(names, podNames()...)
	}
	if opts.Faultless {
		return r.Err(names, nil)
	}
	return r.Err(names, faultNames())
}

// play runs rounds until the time is over.
func (w *world) play(ctx context.Context, begun time.Time) error {
	_, drawn := verbNames()
	schedule, sound := NewSchedule(w.opts.Seed, drawn, faultNames()), newSchedule(w.opts.Seed, soundStream, unfaulted, nil)
	day := newSchedule(w.opts.Seed, dayStream, drawnOf(dayVerbs()), nil)
	pods := newSchedule(w.opts.Seed, podStream, drawnOf(podVerbs()), nil)
	for {
		calls, cancel := context.WithCancel(ctx)
		err := w.round(calls, schedule, day, pods)
		if err == nil {
			err = w.awaitHealthy(ctx, cancel)
		}
		if err == nil && !w.violated() {
			w.checkVerbs(ctx, sound)
		}
		cancel()
		if err != nil {
			return err
		}
		if w.opts.Fast && w.violated() {
			return errViolated
		}
		if time.Since(begun) >= w.opts.Time {
			return nil
		}
	}
}

// round plays steps up to the next Calm.
func (w *world) round(ctx context.Context, schedule, day, pods *Schedule) error {
	named := map[string]verb{}
	for _, v := range slices.Concat(verbs(), dayVerbs(), podVerbs()) {
		named[v.name] = v
	}
	kinds := map[string]fault{}
	for _, f := range faults() {
		kinds[f.name] = f
	}
	for step := schedule.Next(); step.Name != Calm; step = schedule.Next() {
		select {
		case <-time.After(step.Gap):
		case <-ctx.Done():
			return ctx.Err()
		}
		w.restartEnded(context.WithoutCancel(ctx))
		w.blames()
		var err error
		switch {
		case step.Fault && w.opts.Faultless:
			err = errNobody
		case step.Fault:
			err = w.inject(ctx, kinds[step.Name], step)
		default:
			err = w.order(ctx, named[step.Name], step)
		}
		w.orderDay(ctx, named, step, day)
		w.orderPod(ctx, named, step, pods)
		w.result.change(func() { w.result.Steps = step.N })
		if err != nil {
			w.log("%s: missed: %v", step, err)
			w.result.change(func() { w.result.Missed++ })
		}
	}
	return nil
}

// bootAll makes the first VMs, as the schedule's own verb does, a few at once.
func (w *world) bootAll(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(3)
	for i, g := range w.guests {
		group.Go(func() error {
			a := &act{world: w, g: g, to: w.Node(i % len(w.Nodes()))}
			begun := time.Now()
			first := firstRun(i)
			if g.pod != nil {
				first = (*act).podRun
			}
			err := first(a, ctx)
			w.log("%s runs on %s after %.1f s: %v", g.name, a.to.Name, time.Since(begun).Seconds(), err)
			return err
		})
	}
	return group.Wait()
}

// firstRun is how the first VM of a guest is made: of each four, three by godwit.
func firstRun(i int) func(*act, context.Context) error {
	if i%4 > 0 {
		return (*act).runByGodwit
	}
	return (*act).run
}

// described is what the run is about.
func described(ctx context.Context, root string) (commit string, versions map[string]string) {
	versions = map[string]string{}
	for name, args := range map[string][]string{
		"commit": {"git", "describe", "--always", "--dirty", "--exclude", "*"}, "go": {"go", "version"},
		"kernel":     {"uname", "-r"},
		"containerd": {filepath.Join("bin", "tools", "containerd"), "--version"},
		"etcd":       {filepath.Join("bin", "tools", "etcd", "server"), "--version"},
		"vmm":        {"qemu-system-x86_64", "--version"},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			out = []byte(fmt.Sprintf("unknown: %v", err))
		}
		versions[name], _, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	}
	commit = versions["commit"]
	delete(versions, "commit")
	return commit, versions
}
