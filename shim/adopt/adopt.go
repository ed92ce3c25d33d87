// Package adopt is the shim's successor for a VM whose shim died while an operation
// held it. It takes the VM over by its pid, its sockets and its journal, serves
// godwit.machine.v1 for godwitd, and obeys the record: containerd sees the task as gone.
package adopt

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/join"
	"godwit.dev/godwit/shim/program"
)

// Main returns when the VM has ended or is settled.
func Main(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(program.Adopt, flag.ContinueOnError)
	path := flags.String("config", "", "configuration of the node")
	namespace := flags.String("namespace", "", "containerd's namespace of the VM")
	id := flags.String("id", "", "id of the VM")
	gone := flags.Bool("forgotten", false, "containerd answers that it has no task of it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *namespace == "" || *id == "" {
		return fmt.Errorf("adopt: -namespace and -id are needed: %w", errdefs.ErrInvalidArgument)
	}
	cfg, err := config.Load(*path)
	if err != nil {
		return err
	}
	host, err := join.Host(cfg)
	if err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if *gone {
		if err := shim.Forget(ctx, host, *namespace, *id); err == nil || !errdefs.IsFailedPrecondition(err) {
			return err
		}
	}
	return shim.Adopt(ctx, host, *namespace, *id)
}
