// Command godwit asks the daemon of this node about VMs, and puts them to sleep and
// wakes them.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"godwit.dev/godwit/cli"
	"godwit.dev/godwit/internal/gcpause"
)

func main() {
	if cli.Tracked(os.Args[1:]) {
		return
	}
	gcpause.Keep(gcpause.Idle)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(cli.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
