// Command demo shows godwit's main job, and writes what it measured. With -live it shows a VM that moves while it runs.
// With -pod a pod does both, and with -k8s a VirtualMachine of Kubernetes. It ends with 1 if any check fails, and with
// 2 if the VMM that GODWIT_VMM names does not run here. It cleans up also when interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"godwit.dev/godwit/integration/demo"
	"godwit.dev/godwit/vmm/cloudhypervisor"
)

// limit is far above what the demo needs; a machine that takes longer is stuck.
const limit = 30 * time.Minute

func main() {
	out := flag.String("out", "out/demo.json", "file for the measurements")
	live := flag.Bool("live", false, "show a live move")
	pod := flag.Bool("pod", false, "show a pod")
	kubernetes := flag.Bool("k8s", false, "show a VirtualMachine of Kubernetes")
	flag.Parse()
	os.Exit(run(*out, func(ctx context.Context) (result, error) { return show(ctx, *live, *pod, *kubernetes) }))
}

// result is what a demo has measured.
type result interface {
	Table(w io.Writer) error
	Write(path string) error
}

func show(ctx context.Context, live, pod, kubernetes bool) (result, error) {
	switch {
	case kubernetes:
		return demo.RunKubernetes(ctx, os.Stdout)
	case pod:
		return demo.RunPod(ctx, os.Stdout)
	case live:
		return demo.RunLive(ctx, os.Stdout)
	}
	return demo.Run(ctx, os.Stdout)
}

func run(out string, show func(context.Context) (result, error)) int {
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(interrupted, limit)
	defer cancel()
	if os.Getenv("GODWIT_VMM") == cloudhypervisor.Name {
		if _, err := cloudhypervisor.New(cloudhypervisor.Driver{Binary: os.Getenv("GODWIT_CLOUD_HYPERVISOR")}).
			Probe(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "demo: not run: %v\n", err)
			return 2
		}
	}
	start := time.Now()
	result, err := show(ctx)
	if interrupted.Err() != nil {
		fmt.Fprintln(os.Stderr, "demo: interrupted; everything is cleaned up")
		return 130
	}
	fmt.Println()
	err = errors.Join(err, result.Table(os.Stdout), result.Write(out))
	if err != nil {
		fmt.Fprintf(os.Stderr, "\n%v\ndemo: FAILED\n", err)
		return 1
	}
	fmt.Printf("\ndemo: all checks passed in %s; %s\n", time.Since(start).Round(time.Second), out)
	return 0
}
