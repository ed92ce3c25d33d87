package ring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Runner runs cases, one after the other: a host with one processor is no faster with two.
type Runner struct {
	Root    string    // of the repository
	Out     io.Writer // what the programs say
	Results io.Writer // a line for each case
	Kept    *Kept     // takes what is left of cases that fail; nil: nothing does
	Bound   time.Duration
	Work    string // directory of its own
}

// Run runs the cases. The error names those that failed.
func (r *Runner) Run(ctx context.Context, cases []Case) error {
	var failed []error
	for _, c := range cases {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(failed, err)...)
		}
		fmt.Fprintf(r.Out, "=== CASE %s\n", c.ID())
		res := r.one(ctx, c)
		word := "PASSED"
		if res.Why != "" {
			word = "FAILED"
			failed = append(failed, fmt.Errorf("%s: %s", c.ID(), res.Why))
		}
		fmt.Fprintf(r.Out, "=== %s %s: %d passed, %d failed, %d skipped in %.0f s %s\n", word, c.ID(), res.Passed, res.Failed,
			res.Skipped, res.Seconds, res.Why)
		line, err := json.Marshal(res)
		if err == nil {
			_, err = r.Results.Write(append(line, '\n'))
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("write result of %s: %w", c.ID(), err))
		}
	}
	return errors.Join(failed...)
}

func (r *Runner) one(ctx context.Context, c Case) Result {
	dir := filepath.Join(r.Work, strings.ReplaceAll(c.ID(), "/", "-"))
	begun := time.Now()
	said, err := r.play(ctx, c, dir)
	res := Result{Case: c.ID(), Passed: said.count("PASS"), Failed: said.count("FAIL"), Skipped: len(c.Skips),
		Seconds: time.Since(begun).Seconds()}
	if len(said) == 0 && c.Tests == "-" && err == nil {
		res.Passed = 1 // a program without tests has its exit code alone
	}
	if silent := said.named("SKIP"); len(silent) > 0 {
		slices.Sort(silent)
		err = errors.Join(err, fmt.Errorf("skipped without being on the list: %s", strings.Join(silent, ", ")))
	}
	if res.Passed == 0 {
		err = errors.Join(err, errors.New("nothing passed"))
	}
	if err != nil {
		res.Failed, res.Why = max(res.Failed, 1), strings.ReplaceAll(err.Error(), "\n", "; ")
		if kerr := r.Kept.Add(dir); kerr != nil {
			res.Why += "; " + kerr.Error()
		}
	}
	_ = os.RemoveAll(dir)
	return res
}

// play runs the program of a case and answers what it said of its tests.
func (r *Runner) play(ctx context.Context, c Case, dir string) (said verdicts, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "output.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	ctx, cancel := context.WithTimeout(ctx, r.Bound+time.Minute) // the program's own bound comes first
	defer cancel()
	cmd, err := r.command(ctx, c, dir)
	if err != nil {
		return nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = in, in
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	in.Close()
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		// What the program has left may hold its output open.
		_ = out.SetReadDeadline(time.Now().Add(10 * time.Second))
		ended <- err
	}()
	said, err = follow(out, io.MultiWriter(r.Out, log))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	werr := <-ended
	if ctx.Err() != nil {
		werr = fmt.Errorf("no end after %s: %w", r.Bound+time.Minute, ctx.Err())
	}
	return said, errors.Join(err, werr)
}

// command makes the command of a case; dir takes what it leaves.
func (r *Runner) command(ctx context.Context, c Case, dir string) (*exec.Cmd, error) {
	program, at := filepath.Join(r.Root, "bin", "ring", c.Binary()), filepath.Join(r.Root, c.Package())
	args := []string{"-test.v", "-test.count=1", "-test.timeout=" + r.Bound.String(), "-test.run=" + c.Tests}
	if pattern := c.skipped(); pattern != "" {
		args = append(args, "-test.skip="+pattern)
	}
	env := append(os.Environ(), "GODWIT_VMM="+c.VMM, "GODWIT_ACCEL=kvm", "GODWIT_ARTEFACTS="+dir)
	switch c.Program {
	case "demo":
		args = []string{"-out", filepath.Join(dir, "demo.json")}
	case "shimtest":
		more, err := r.shimtest(c, dir)
		if err != nil {
			return nil, err
		}
		env = append(env, more...)
		// Namespaces of its own: what is interrupted leaves no VM.
		args = append([]string{"--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc",
			program}, args...)
		program = "unshare"
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = at, env
	return cmd, nil
}

// Binary is the file of the case's program.
func (c Case) Binary() string {
	switch c.Program {
	case "vmm":
		return "vmm-" + c.VMM + ".test"
	case "demo":
		return "demo"
	}
	return c.Program + ".test"
}

// Package is where the program's source is; shimtest's is a module of its own.
func (c Case) Package() string {
	switch c.Program {
	case "vmm":
		return "./vmm/" + strings.ReplaceAll(c.VMM, "-", "")
	case "demo":
		return "./integration/cmd/demo"
	case "shimtest":
		return "./tools/shimtest"
	}
	return "./integration/" + c.Program
}

// skipped is the pattern of what is left out.
func (c Case) skipped() string {
	var all []string
	for _, s := range c.Skips {
		parts := strings.Split(s.Test, "/")
		for i := range parts {
			parts[i] = "^" + regexp.QuoteMeta(parts[i]) + "$"
		}
		all = append(all, strings.Join(parts, "/"))
	}
	return strings.Join(all, "|")
}
