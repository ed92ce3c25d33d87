package main

import (
	"fmt"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

func newRm(opts *options) *cobra.Command {
	request := &nodev1.ForgetRequest{}
	cmd := &cobra.Command{
		Use:   "rm VM",
		Short: "End the record of a VM, and its snapshots",
		Long: "A VM that runs is refused: end its task first. A VM that sleeps is refused too, unless\n" +
			"--force gives its state up.",
		Args: oneVM,
		RunE: opts.onVM(func(cmd *cobra.Command, node nodev1.NodeService, vm *nodev1.VM) error {
			request.Vm = vm
			resp, err := node.Forget(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			if resp.GetWarning() != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "godwit:", resp.GetWarning())
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s/%s removed\n", vm.GetNamespace(), vm.GetId())
			return err
		}),
	}
	cmd.Flags().BoolVar(&request.Force, "force", false, "give up the state of a VM that sleeps")
	cmd.Flags().BoolVar(&request.KeepSnapshots, "keep-snapshots", false, "leave the snapshots in the registry")
	return cmd
}
