package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
)

// Options of a run.
type Options struct {
	Nodes  int
	Groups []string
	Idle   time.Duration // at least, of an etcd
	Log    io.Writer
	Self   []string // this program as a process of nodes
}

// run is one of them.
type run struct {
	Options
	root, dir string
	result    *Result
}

// Run measures. What could not be measured is null in the result, and an error.
func Run(ctx context.Context, o Options) (*Result, error) {
	if len(o.Groups) == 0 {
		o.Groups = Groups
	}
	begun := time.Now()
	r := &run{Options: o, result: &Result{
		When: begun.UTC().Truncate(time.Second), Nodes: o.Nodes, VMs: o.Nodes * vmsOfNode, Figures: figures(o.Groups),
		Notes: map[string]float64{},
	}}
	err := r.measure(ctx)
	r.result.Machine.LoadAfter, r.result.Seconds = load(), time.Since(begun).Seconds()
	return r.result, err
}

func (r *run) measure(ctx context.Context) (err error) {
	if r.root, err = harness.Root(); err != nil {
		return err
	}
	if err := r.identify(ctx); err != nil {
		return err
	}
	if r.dir, err = os.MkdirTemp("", "godwit-scale-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	if err := prepare(r.dir, r.Nodes); err != nil {
		return err
	}
	var errs []error
	for _, store := range []string{ofBolt, ofEtcd} {
		for _, g := range []struct {
			groups []string
			do     func(context.Context, string) error
		}{{[]string{idleGroup, stormGroup}, r.fleet}, {[]string{claimGroup}, r.claims}, {[]string{growthGroup}, r.growth}} {
			if !slices.ContainsFunc(g.groups, r.wants) || ctx.Err() != nil {
				continue
			}
			r.say("%s: %s", store, strings.Join(g.groups, ", "))
			if err := g.do(ctx, store); err != nil {
				errs = append(errs, fmt.Errorf("%s on %s: %w", g.groups[0], store, err))
			}
		}
	}
	if r.wants(hostGroup) && ctx.Err() == nil {
		r.say("real VMs: %s", hostGroup)
		errs = append(errs, r.host(ctx))
	}
	return errors.Join(errs...)
}

func (r *run) wants(group string) bool { return slices.Contains(r.Groups, group) }

func (r *run) say(format string, args ...any) { fmt.Fprintf(r.Log, format+"\n", args...) }

// violation notes what must not be.
func (r *run) violation(format string, args ...any) {
	r.result.Seen = append(r.result.Seen, fmt.Sprintf(format, args...))
}

func (r *run) looked() {
	n := len(r.result.Seen)
	r.result.Violations = &n
}

// identify notes what is measured, and on what.
func (r *run) identify(ctx context.Context) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	line := func(name string, args ...string) string {
		out, _ := exec.CommandContext(ctx, name, args...).Output()
		first, _, _ := strings.Cut(string(out), "\n")
		return first
	}
	r.result.Machine = Machine{
		CPUs: runtime.NumCPU(), Kernel: unix.ByteSliceToString(u.Release[:]), Go: runtime.Version(), LoadBefore: load(),
		Godwit: line(filepath.Join(r.root, "bin/godwitd"), "-version"),
		Etcd:   line(filepath.Join(r.root, "bin/tools/etcd/server"), "--version"),
	}
	r.result.Commit = line("git", "-C", r.root, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
	return nil
}

func load() *float64 {
	data, err := os.ReadFile("/proc/loadavg")
	var one float64
	if _, scanned := fmt.Sscan(string(data), &one); err != nil || scanned != nil {
		return nil
	}
	return &one
}

// quantile of at least one value.
func quantile(values []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

func median(values []float64) float64 { return quantile(values, 0.5) }
