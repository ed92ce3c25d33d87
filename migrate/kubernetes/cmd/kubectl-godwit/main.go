// Command kubectl-godwit is the plugin of kubectl for VMs: kubectl godwit hibernate NAME.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"godwit.dev/godwit/internal/visible"
	"godwit.dev/godwit/migrate/kubernetes/plugin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := plugin.Command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubectl-godwit:", visible.Line(err.Error()))
		os.Exit(1)
	}
}
