package cli

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

func newRm(opts *options) *cobra.Command {
	what, order, byUID := client.RemoveOptions{}, finalOrder{}, false
	cmd := &cobra.Command{
		Use:   "rm VM",
		Short: "Remove a VM, its disk and its snapshots; or put a VM that runs to sleep for good",
		Long: "A VM that runs is refused, unless --force ends it. A VM that sleeps is refused too, unless --force gives\n" +
			"its state up. A container that ctr or nerdctl made stays: its record and snapshots go.\n" +
			"With --final-snapshot, a VM that runs is put to sleep for good: its last state goes to the registry and is\n" +
			"read back, and only then task and container are removed. Its record stays, with the snapshot: godwit wake VM\n" +
			"has it back, godwit rm --force VM gives it up. While that fails the VM runs on, and its node tries again, also\n" +
			"over a restart, until it succeeds, fails for good, or is called off (--cancel).",
		PreRunE: func(cmd *cobra.Command, _ []string) error { return order.check(cmd.Flags()) },
		RunE: opts.onVMOrUID(&byUID, func(cmd *cobra.Command, node nodev1.NodeService, vm *nodev1.VM) error {
			if order.cancel {
				return callOff(cmd, opts, node, vm)
			}
			if order.final {
				return order.order(cmd, opts, node, vm)
			}
			c := opts.client()
			defer c.Close()
			warning, err := c.Remove(cmd.Context(), vm, what)
			if err != nil {
				return err
			}
			if warning != "" && !opts.machine() {
				opts.note(cmd, warning)
			}
			return opts.print(cmd, screen.Result{Value: &nodev1.ForgetResponse{Warning: warning},
				Names: []string{fullName(vm)}, Text: said("%s removed", fullName(vm))})
		}),
	}
	flags := cmd.Flags()
	flags.BoolVar(&byUID, "uid", false, "VM is its uid (godwit ps -o json): for one whose name cannot be written, such "+
		"as one with a slash")
	flags.BoolVarP(&what.Force, "force", "f", false, "end a VM that runs; give up the state of one that sleeps")
	flags.StringVar(&what.LostNode, "lost-node", "",
		"with --force, on the controller: the node that owns the VM is gone for good, or never was, and runs nothing")
	flags.BoolVar(&what.KeepSnapshots, "keep-snapshots", false, "leave the snapshots in the registry")
	flags.BoolVar(&order.final, "final-snapshot", false, "delete a VM that runs, once its last state is in the registry")
	flags.BoolVar(&order.endExecs, "end-execs", false,
		"with --final-snapshot: end processes started by exec (exit 137) instead of refusing")
	flags.BoolVar(&order.detach, "detach", false, "with --final-snapshot: return once the order is durable")
	flags.BoolVar(&order.cancel, "cancel", false, "call off what --final-snapshot has ordered")
	return cmd
}

// check refuses flags that say nothing together.
func (o *finalOrder) check(flags *pflag.FlagSet) error {
	for name, goes := range map[string]bool{
		"force": !o.final && !o.cancel, "keep-snapshots": !o.final && !o.cancel, "lost-node": !o.final &&
			!o.cancel, "end-execs": o.final, "detach": o.final, "final-snapshot": !o.cancel,
	} {
		switch {
		case goes || !flags.Changed(name):
		case o.cancel:
			return fmt.Errorf("--cancel and --%s: choose one: %w", name, errdefs.ErrInvalidArgument)
		case o.final:
			return fmt.Errorf("--final-snapshot and --%s: choose one: %w", name, errdefs.ErrInvalidArgument)
		default:
			return fmt.Errorf("--%s: it belongs to --final-snapshot: %w", name, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}
