// Command ring answers for tools/kvmhost.sh which cases there are and runs them on a host where
// KVM works. The host may be the ground. It then sums up how they ended.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/ring"
	"godwit.dev/godwit/vmm/kvm"
)

const usage = `usage: ring plan -lacking FILE NAME..       print the cases that the names ask for
       ring programs CASE..                 print what they run
       ring kvm                             tell whether KVM works here
       ring left -results FILE CASE..       print those that have no result yet
       ring lanes -lanes NUMBER CASE..      print them again, a line for each ground
       ring run [-where ground] -results FILE -kept FILE CASE..
       ring report -results FILE -out FILE CASE..`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	if err := command(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "ring:", strings.ReplaceAll(err.Error(), "\n", "\nring: "))
		os.Exit(1)
	}
}

// options of all verbs; each reads its own.
type options struct {
	without, lacking, results, worked, kept, out, where string
	void, seconds, lanes                                int
	bound                                               time.Duration
}

func command(verb string, args []string) error {
	var o options
	flags := flag.NewFlagSet("ring "+verb, flag.ExitOnError)
	flags.StringVar(&o.without, "without", "", "a VMM that is not here")
	flags.StringVar(&o.lacking, "lacking", "", "file with a line for each case that cannot run here; plan writes it")
	flags.StringVar(&o.results, "results", "", "file with a line for each case")
	flags.StringVar(&o.worked, "worked", "", "file with a line for each case: its name, and seconds of work")
	flags.StringVar(&o.kept, "kept", "", "file or disk that takes what is left of cases that fail, as tar")
	flags.StringVar(&o.out, "out", "", "file for the report")
	flags.StringVar(&o.where, "where", "host", "host or ground")
	flags.IntVar(&o.void, "void", 0, "starts of the ground that were void")
	flags.IntVar(&o.lanes, "lanes", 1, "grounds that run side by side")
	flags.IntVar(&o.seconds, "seconds", 0, "that it took")
	flags.DurationVar(&o.bound, "bound", 30*time.Minute, "bound of a case")
	if err := flags.Parse(args); err != nil {
		return err
	}
	all, err := ring.Cases()
	if err != nil {
		return err
	}
	if verb == "kvm" {
		return kvm.Default.Missing()
	}
	cases, err := ring.Select(all, flags.Args())
	if err != nil {
		return err
	}
	cases = ring.At(cases, o.where)
	switch verb {
	case "plan":
		return o.plan(cases)
	case "programs":
		return programs(cases)
	case "left":
		return o.left(cases)
	case "lanes":
		for _, lane := range ring.Lanes(cases, o.lanes) {
			fmt.Println(strings.Join(ring.IDs(lane), " "))
		}
		return nil
	case "run":
		return o.run(cases)
	case "report":
		return o.report(cases)
	}
	return fmt.Errorf("unknown verb %q\n%s", verb, usage)
}

// plan prints the cases that can run here, and writes down why the others cannot.
func (o options) plan(cases []ring.Case) error {
	var lacking strings.Builder
	for _, c := range cases {
		if c.VMM == o.without {
			continue
		}
		if why := c.Lacks(o.where, os.Getenv); why != "" {
			fmt.Fprintf(&lacking, "%s: %s\n", c.ID(), why)
			continue
		}
		fmt.Println(c.ID())
	}
	if o.lacking == "" {
		return nil
	}
	return os.WriteFile(o.lacking, []byte(lacking.String()), 0o644)
}

// programs prints file and package of each program that the cases run.
func programs(cases []ring.Case) error {
	var seen []string
	for _, c := range cases {
		if line := c.Binary() + " " + c.Package(); !slices.Contains(seen, line) {
			seen = append(seen, line)
			fmt.Println(line)
		}
	}
	return nil
}

func (o options) read() ([]ring.Result, error) {
	f, err := os.Open(o.results)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ring.ReadResults(f)
}

func (o options) left(cases []ring.Case) error {
	got, err := o.read()
	if err != nil {
		return err
	}
	for _, c := range cases {
		if !slices.ContainsFunc(got, func(r ring.Result) bool { return r.Case == c.ID() }) {
			fmt.Println(c.ID())
		}
	}
	return nil
}

func (o options) run(cases []ring.Case) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := harness.Root()
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("/tmp", "ring")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	results, err := os.OpenFile(o.results, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, results.Close()) }()
	r := &ring.Runner{Root: root, Out: os.Stdout, Results: results, Bound: o.bound, Work: work}
	if o.kept != "" {
		f, err := os.OpenFile(o.kept, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		r.Kept = ring.NewKept(f)
		defer func() { err = errors.Join(err, r.Kept.Close(), f.Close()) }()
	}
	return r.Run(ctx, cases)
}

func (o options) report(cases []ring.Case) error {
	got, err := o.read()
	if err != nil {
		return err
	}
	report, verdict := ring.Judge(cases, got)
	report.Where, report.VoidStarts, report.Seconds = o.where, o.void, o.seconds
	if err := o.work(report.Cases); err != nil {
		return err
	}
	if o.without != "" {
		report.NotRun = []string{o.without}
	}
	if o.lacking != "" {
		data, err := os.ReadFile(o.lacking)
		if err != nil {
			return err
		}
		report.NotRun = append(report.NotRun, strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })...)
	}
	data, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(o.out, append(data, '\n'), 0o644); err != nil {
		return err
	}
	for _, c := range report.Cases {
		fmt.Printf("kvmhost: %-28s %3d passed %3d failed %3d skipped %5.0f s (%.0f s of a processor) %s\n", c.Case, c.Passed,
			c.Failed, c.Skipped, c.Seconds, c.Worked, c.Why)
	}
	for _, s := range report.LeftOut {
		fmt.Println("kvmhost: left out:", s)
	}
	fmt.Printf("kvmhost: on %s: %s: %d passed, %d failed, %d skipped, %d void starts, %d s\n",
		strings.Join(report.VMMs, " and "), report.Where, report.Passed, report.Failed, report.Skipped, report.VoidStarts,
		report.Seconds)
	return verdict
}

// work notes what the ground has worked for each case.
func (o options) work(cases []ring.Result) error {
	if o.worked == "" {
		return nil
	}
	data, err := os.ReadFile(o.worked)
	if err != nil {
		return err
	}
	for i, c := range cases {
		for line := range strings.Lines(string(data)) {
			if id, seconds, ok := strings.Cut(strings.TrimSpace(line), " "); ok && id == c.Case {
				if _, err := fmt.Sscan(seconds, &cases[i].Worked); err != nil {
					return fmt.Errorf("work of %s: %w", id, err)
				}
			}
		}
	}
	return nil
}
