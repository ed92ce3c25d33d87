// Command testk8s runs the tests of the module of Kubernetes on a real API server, and writes how they ended. It ends
// with 1 if one failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"godwit.dev/godwit/integration/controlplane"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/k8s"
)

const (
	module = "migrate/kubernetes"
	// limit is far above what all tests need.
	limit = 30 * time.Minute
)

// result is how a run ended.
type result struct {
	k8s.Result
	Kinds       int `json:"kinds"`                    // of the API
	Unexplained int `json:"unexplained_requirements"` // promises that no test of the run shows
	// Rights are what the roles of godwit's programs and the requests of the run do not agree on; of a whole run alone.
	Rights []string `json:"rights"`
}

func main() {
	out := flag.String("out", filepath.Join("out", "test-k8s.json"), "file for the result")
	focus := flag.String("run", ".", "regular expression of names")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *focus, *out); err != nil {
		fmt.Fprintln(os.Stderr, "test-k8s: FAILED:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, focus, out string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	promises, err := os.ReadFile(filepath.Join(module, "testdata", "promises.txt"))
	if err != nil {
		return err
	}
	kinds, err := os.ReadDir("packaging/kubernetes/crd/bases")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-tags", "integration", "-count=1", "-json", "-timeout",
		limit.String(), "-run", focus, "./...")
	cmd.Dir = module
	audit, err := os.MkdirTemp("", "godwit-audit-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(audit)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath", controlplane.AuditVariable+"="+audit)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stderr = os.Stderr
	tests, err, ended := k8s.Run(cmd, os.Stdout)
	r := result{Result: tests, Kinds: len(kinds)}
	r.Unexplained = unexplained(string(promises), r.Cases)
	var rerr error
	r.Rights, rerr = rights(audit)
	if err := errors.Join(err, rerr, harness.WriteResult(out, r)); err != nil {
		return err
	}
	fmt.Printf("test-k8s: %d kinds, %d passed, %d failed, %d promises without a test, in %.0f s: %s\n", r.Kinds, r.Passed,
		r.Failed, r.Unexplained, r.Seconds, out)
	if err := r.Err(); err != nil {
		return err
	}
	if focus == "." && len(r.Rights) > 0 {
		return fmt.Errorf("roles and requests differ: %s", strings.Join(r.Rights, "; "))
	}
	return ended // all passed, and something else did not end well
}

// unexplained counts the promises whose test is none of those that passed. A line is the name of a test and the
// promise.
func unexplained(promises string, cases []k8s.Case) (n int) {
	passed := map[string]bool{}
	for _, c := range cases {
		passed[c.Name] = c.End == "pass"
	}
	for line := range strings.Lines(promises) {
		if test, _, ok := strings.Cut(line, " "); ok && test != "#" && !passed[test] {
			n++
		}
	}
	return n
}
