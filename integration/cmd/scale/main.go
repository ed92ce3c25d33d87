// Command scale measures what a large fleet costs and writes what it found. It ends with 1 if any
// figure is missing, or anything was lost or doubled; no figure is ever too large.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"godwit.dev/godwit/integration/scale"
)

// hostArg makes the program a process of nodes; it calls itself so.
const hostArg = "nodes"

// limit is far above what a run needs; a machine that takes longer is stuck.
const limit = 90 * time.Minute

// leastIdle is how long an etcd is watched at least.
const leastIdle = 10 * time.Minute

func main() {
	out := flag.String("out", "out/scale.json", "file for the measurements")
	nodes := flag.Int("nodes", 1000, "nodes, with 10 VMs each; published figures are of 1000")
	idle := flag.Duration("idle", leastIdle, "how long an etcd is watched; published figures are of 10m at least")
	only := flag.String("only", "", "groups of figures, with commas between: "+strings.Join(scale.Groups, ", ")+
		"; empty: all")
	flag.Parse()
	os.Exit(run(*out, *nodes, *idle, *only, flag.Args()))
}

func run(out string, nodes int, idle time.Duration, only string, args []string) int {
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if len(args) == 1 && args[0] == hostArg {
		return report(scale.HostMain(context.Background(), os.Stdin, os.Stdout)) // it ends with its orders
	}
	ctx, cancel := context.WithTimeout(interrupted, limit)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return report(err)
	}
	var groups []string
	if only != "" {
		groups = strings.Split(only, ",")
	}
	for _, g := range groups {
		if !slices.Contains(scale.Groups, g) {
			return report(fmt.Errorf("-only %q: no such group, there are %s", g, strings.Join(scale.Groups, ", ")))
		}
	}
	if len(args) > 0 || nodes < 1 {
		return report(errors.New("want -nodes of at least 1 and no arguments"))
	}
	result, err := scale.Run(ctx, scale.Options{Nodes: nodes, Groups: groups, Idle: idle, Log: os.Stdout,
		Self: []string{self, hostArg}})
	fmt.Println()
	err = errors.Join(err, result.Table(os.Stdout), result.Write(out))
	if missing := result.Check(); len(missing) > 0 {
		err = errors.Join(err, errors.New(strings.Join(missing, "\n")))
	}
	if err != nil {
		return report(err)
	}
	fmt.Printf("\nscale: %d nodes in %.0f s; %s\n", nodes, result.Seconds, out)
	return 0
}

func report(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "\n%v\nscale: FAILED\n", err)
	return 1
}
