// Command critest runs a conformance suite of Kubernetes' runtime interface with runc and with godwit, and writes how
// they compare. It ends with 1 if something is not explained.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"godwit.dev/godwit/integration/critest"
	"godwit.dev/godwit/integration/harness"
)

// limit is far above what both runs of a suite need.
const limit = 6 * time.Hour

func main() {
	suite := flag.String("suite", "critest", "critest, or cri-suite: containerd's own")
	handler := flag.String("handler", "godwit", "the runtime handler that is compared with runc; runc: runc alone")
	release := flag.String("containerd", string(harness.Newest), "release of containerd")
	focus := flag.String("focus", "", "only specs whose names match this regular expression")
	skip := flag.String("skip", "", "no specs whose names match this regular expression")
	out := flag.String("out", "", "file for the result; default: out/SUITE.json")
	flag.Parse()
	if *out == "" {
		*out = filepath.Join("out", *suite+".json")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := run(ctx, critest.Order{Suite: *suite, Handler: *handler, Release: harness.Release(*release),
		Selection: critest.Selection{Focus: *focus, Skip: *skip}, Logs: filepath.Dir(*out), Log: say}, *out); err != nil {
		fmt.Fprintln(os.Stderr, "critest:", err)
		os.Exit(1)
	}
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func run(ctx context.Context, o critest.Order, out string) error {
	r, err := critest.Run(ctx, o)
	if err != nil {
		return err
	}
	if err := harness.WriteResult(out, r); err != nil {
		return err
	}
	r.Table(os.Stdout)
	return r.Err()
}
