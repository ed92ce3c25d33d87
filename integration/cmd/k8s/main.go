// Command k8s runs the cases of Kubernetes on one cluster, and writes how they ended. It ends with 1 if one failed.
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
	"strconv"
	"syscall"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/k8s"
)

const (
	// smoke are the cases that CI runs, on one node each, or on nodes of their own.
	smoke = "^(TestPod|TestMachine|TestOperatorServes)$"
	// machines are the cases of VirtualMachines and Sandboxes on two nodes, but for those that install godwit again and
	// the tests of agent-sandbox itself.
	machines = "^(TestMachine.*|TestNodeLost|TestAPIAway|TestSandbox)$"
	// limit is far above what all cases need.
	limit = 2 * time.Hour
	// grace is what a run that is ended has to end its cluster.
	grace = time.Minute
)

func main() {
	cases := flag.String("cases", "all", "all, smoke, machines, or a regular expression of names")
	handler := flag.String("handler", k8s.Godwit, "runtime handler of the pods; runc: are the cases sound?")
	out := flag.String("out", filepath.Join("out", "k8s.json"), "file for the result")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *cases, *handler, *out); err != nil {
		fmt.Fprintln(os.Stderr, "k8s: FAILED:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, cases, handler, out string) error {
	focus, nodes := cases, 2
	switch cases {
	case "all":
		focus = "."
	case "machines":
		focus = machines
	case "smoke":
		focus, nodes = smoke, 1
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-tags", "integration", "-count=1", "-json", "-timeout", limit.String(),
		"-run", focus, "-skip", "^TestRead$", "./integration/k8s", "-nodes", strconv.Itoa(nodes), "-handler", handler)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = grace
	cmd.Stderr = os.Stderr
	r, err, ended := k8s.Run(cmd, os.Stdout)
	if err := errors.Join(err, harness.WriteResult(out, r)); err != nil {
		return err
	}
	fmt.Printf("k8s: %d passed, %d failed, %d skipped, in %.0f s: %s\n", r.Passed, r.Failed, r.Skipped, r.Seconds, out)
	if err := r.Err(); err != nil {
		return err
	}
	return ended // all passed, and something else did not end well
}
