package critest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// testTime bounds one test of containerd's suite.
const testTime = 10 * time.Minute

// Suite runs containerd's own suite with a runtime handler. Each test is a process of its own, and the node is rid
// of its pods after each: one that hangs or fails costs no other one its verdict.
func (g *Ground) Suite(ctx context.Context, handler string, s Selection, log io.Writer) (all []Spec, err error) {
	list := filepath.Join(g.Dir, "images.toml")
	if err := os.WriteFile(list, []byte(g.imageList()), 0o644); err != nil {
		return nil, err
	}
	flags := []string{"-cri-endpoint", "unix://" + g.Socket, "-runtime-handler", handler, "-image-list", list,
		"-containerd-bin", "containerd"}
	names, err := g.tests(ctx, flags, s)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		var out bytes.Buffer
		start := time.Now()
		err := g.program(ctx, io.MultiWriter(&out, log), "cri-suite", append(slices.Clone(flags), "-test.v",
			"-test.timeout", testTime.String(), "-test.run", "^"+name+"$")...)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return nil, err
		}
		all = append(all, readTest(name, out.String(), time.Since(start)))
		if err := g.removePods(ctx, log); err != nil {
			return nil, fmt.Errorf("clean up after %s: %w", name, err)
		}
	}
	return all, nil
}

// imageList names the images of the suite.
func (g *Ground) imageList() string {
	var b strings.Builder
	for name, repository := range g.names {
		fmt.Fprintf(&b, "%s = %q\n", name, "localhost/"+repository)
	}
	return b.String()
}

// tests lists those that a selection has.
func (g *Ground) tests(ctx context.Context, flags []string, s Selection) (names []string, err error) {
	focus, err := regexp.Compile(s.Focus)
	if err != nil {
		return nil, fmt.Errorf("read focus: %w", err)
	}
	skip, err := regexp.Compile(s.Skip)
	if err != nil {
		return nil, fmt.Errorf("read skip: %w", err)
	}
	var out bytes.Buffer
	if err := g.program(ctx, &out, "cri-suite", append(slices.Clone(flags), "-test.list", ".")...); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out.String())
	}
	for name := range strings.Lines(out.String()) {
		name = strings.TrimSpace(name)
		if strings.HasPrefix(name, "Test") && focus.MatchString(name) && (s.Skip == "" || !skip.MatchString(name)) {
			names = append(names, name)
		}
	}
	return names, nil
}

// verdict is the line that says how a test of its own ended.
var verdict = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\S+) `)

// trouble is a line that says why.
var trouble = regexp.MustCompile(`(?m)^\s+(Error:.*|\S+_test\.go:\d+: .*)$|^panic: .*$`)

// readTest reads how a test ended from what it printed. No verdict is a failure.
func readTest(name, out string, took time.Duration) Spec {
	spec := Spec{Name: name, State: Failed, Seconds: took.Seconds()}
	for _, m := range verdict.FindAllStringSubmatch(out, -1) {
		if m[2] == name {
			spec.State = map[string]State{"PASS": Passed, "FAIL": Failed, "SKIP": Skipped}[m[1]]
		}
	}
	if spec.State == Passed {
		return spec
	}
	lines := trouble.FindAllString(out, -1)
	if len(lines) == 0 {
		lines = []string{out[max(0, len(out)-400):]}
	}
	errs := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.Contains(l, "Error:") })
	if len(errs) > 0 {
		lines = errs
	}
	spec.Why = line(lines[len(lines)-1])
	return spec
}

// removePods removes whatever pods are left.
func (g *Ground) removePods(ctx context.Context, log io.Writer) error {
	endpoint := []string{"--runtime-endpoint", "unix://" + g.Socket, "--timeout", "1m"}
	var out bytes.Buffer
	if err := g.program(ctx, &out, "crictl", append(slices.Clone(endpoint), "pods", "--quiet")...); err != nil {
		return fmt.Errorf("%w: %s", err, out.String())
	}
	if len(bytes.TrimSpace(out.Bytes())) == 0 {
		return nil
	}
	if err := g.program(ctx, log, "crictl", append(endpoint, "rmp", "--all", "--force")...); err != nil {
		fmt.Fprintf(log, "pods are left: %v\n", err) // the next tests say what that means
	}
	return nil
}
