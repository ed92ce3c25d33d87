// Command bench measures godwit and writes what it found. It ends with 1 if any figure
// is missing; no figure is ever too slow. It cleans up also when interrupted.
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

	"godwit.dev/godwit/integration/bench"
)

// agentArg makes the program measure the agent alone; it calls itself so in the node.
const agentArg = "agent"

// rivalArg makes it move a guest by QEMU's own migration, in the node too.
const rivalArg = "rival"

// limit is far above what a run needs; a machine that takes longer is stuck.
const limit = 40 * time.Minute

func main() {
	out := flag.String("out", "out/bench.json", "file for the measurements")
	rounds := flag.Int("rounds", 7, "rounds that count; published medians are of at least 7")
	only := flag.String("only", "", "groups of figures, with commas between: "+strings.Join(bench.Groups, ", ")+
		"; empty: all")
	live := flag.Bool("live", false, "measure moves; its groups: "+strings.Join(bench.LiveGroups, ", "))
	beside := flag.String("beside", "", "directory with other programs and their guest: compare both builds, in the "+
		"groups "+strings.Join(bench.BuildGroups, ", "))
	flag.Parse()
	if *beside != "" {
		os.Exit(compare(*beside, *rounds, *only))
	}
	os.Exit(run(*out, *rounds, *only, *live, flag.Args()))
}

func run(out string, rounds int, only string, live bool, args []string) int {
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(interrupted, limit)
	defer cancel()
	if len(args) == 2 && args[0] == agentArg {
		return report(bench.AgentMain(ctx, args[1], os.Stdout))
	}
	if len(args) == 2 && args[0] == rivalArg {
		return report(bench.RivalMain(ctx, args[1], os.Stdout))
	}
	self, err := os.Executable()
	if err != nil {
		return report(err)
	}
	if rounds < 1 || len(args) > 0 {
		return report(errors.New("want -rounds of at least 1 and no arguments"))
	}
	measure, write, known, part := bench.Run, (*bench.Result).WriteKeys, bench.Groups, agentArg
	if live {
		measure, write, known, part = bench.RunLive, (*bench.Result).WriteKeys, bench.LiveGroups, rivalArg
	}
	groups, err := split(only, known)
	if err != nil {
		return report(err)
	}
	result, err := measure(ctx, bench.Options{Rounds: rounds, Groups: groups, Log: os.Stdout, Self: []string{self, part}})
	if interrupted.Err() != nil {
		fmt.Fprintln(os.Stderr, "bench: interrupted; everything is cleaned up")
		return 130
	}
	fmt.Println()
	err = errors.Join(err, result.Table(os.Stdout), write(result, out))
	if missing := append(result.Check(), result.Wrong()...); len(missing) > 0 {
		err = errors.Join(err, errors.New(strings.Join(missing, "\n")))
	}
	if err != nil {
		return report(err)
	}
	fmt.Printf("\nbench: %d rounds in %.0f s; %s\n", rounds, result.Seconds, out)
	return 0
}

// compare measures two builds in turns.
func compare(other string, rounds int, only string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	groups, err := split(only, bench.BuildGroups)
	if err != nil {
		return report(err)
	}
	return report(bench.RunBuilds(ctx, bench.Builds{Rounds: rounds, Groups: groups, Other: other, Log: os.Stdout}))
}

// split reads a list of groups.
func split(only string, known []string) ([]string, error) {
	if only == "" {
		return nil, nil
	}
	groups := strings.Split(only, ",")
	for _, g := range groups {
		if !slices.Contains(known, g) {
			return nil, fmt.Errorf("-only %q: no such group, there are %s", g, strings.Join(known, ", "))
		}
	}
	return groups, nil
}

func report(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "\n%v\nbench: FAILED\n", err)
	return 1
}
