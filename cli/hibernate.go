package cli

import (
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

func newHibernate(opts *options) *cobra.Command {
	request := &nodev1.HibernateRequest{}
	detach, push := false, pushFlags{}
	cmd := &cobra.Command{
		Use:   "hibernate VM",
		Short: "Put a VM to sleep in the registry",
		Long: "Push the VM's RAM and disks while it runs, pause it, push what is left and the device state,\n" +
			"commit the snapshot as the VM's owner, and only then end it on this node. A failure before the commit lets the " +
			"VM go on.",
		PreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			request.Concurrency, request.Bandwidth, request.PauseBudgetMs, err = push.read(cmd)
			return err
		},
		RunE: opts.onVM(func(cmd *cobra.Command, node nodev1.NodeService, vm *nodev1.VM) error {
			request.Vm = vm
			status, err := node.Hibernate(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			return follow(cmd, opts, node, status, detach)
		}),
	}
	cmd.Flags().BoolVar(&request.EndExecs, "end-execs", false,
		"end processes started by exec (exit 137) instead of refusing")
	push.add(cmd)
	cmd.Flags().StringVar(&request.Operation, "operation", "", "id of the operation, to repeat the same call safely")
	cmd.Flags().BoolVar(&detach, "detach", false, "return once the operation is durable")
	return cmd
}
