// Command soak runs VMs under a schedule that a seed draws, and writes what came of it. It ends
// with 1 if anything is wrong, and cleans up also when interrupted.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"godwit.dev/godwit/integration/soak"
)

func main() {
	opts := soak.Options{}
	begun := time.Now()
	flag.DurationVar(&opts.Time, "time", 30*time.Minute, "how long verbs and faults are drawn")
	flag.Uint64Var(&opts.Seed, "seed", 0, "of the schedule; 0: a fresh one")
	flag.IntVar(&opts.VMs, "vms", 12, "how many VMs there are")
	flag.IntVar(&opts.Pods, "pods", 2, "how many pods of CRI there are beside them")
	flag.IntVar(&opts.PodEach, "pod-each", 0, "how many steps lie between two verbs of pods; 0: 3")
	flag.StringVar(&opts.Mutation, "mutation", "", "a fault that was mended, to be built back in")
	flag.BoolVar(&opts.Faultless, "faultless", false, "leave faults out")
	flag.BoolVar(&opts.KeepAll, "keep", false, "keep the logs of all programs although nothing was wrong")
	flag.BoolVar(&opts.Fast, "fast", false, "end at the first violation")
	out := flag.String("out", "out/soak.json", "file for the result")
	flag.Parse()
	if opts.Seed == 0 {
		opts.Seed = rand.Uint64N(1 << 32)
	}
	opts.Log = func(format string, args ...any) {
		fmt.Printf("%7.1f "+format+"\n", append([]any{time.Since(begun).Seconds()}, args...)...)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Printf("soak: SEED=%d TIME=%s\n", opts.Seed, opts.Time)
	if err := soak.RunTo(ctx, opts, *out); err != nil {
		fmt.Fprintf(os.Stderr, "soak: FAILED, SEED=%d: %v\n", opts.Seed, err)
		os.Exit(1)
	}
	fmt.Printf("soak: nothing wrong; %s\n", *out)
}
