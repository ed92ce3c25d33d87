package main

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

func newWake(opts *options) *cobra.Command {
	request := &nodev1.WakeRequest{}
	detach := false
	cmd := &cobra.Command{
		Use:   "wake VM",
		Short: "Wake a VM on this node",
		Long: "Claim the VM for this node, restore it from the snapshot that owns it, and let it run.\n" +
			"A failure before the commit leaves it asleep, to be woken here or elsewhere.",
		Args: oneVM,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("digest") {
				return checkDigest("--digest", request.GetDigest())
			}
			if request.GetForce() {
				return fmt.Errorf("--force: name the snapshot to restore with --digest: %w", errdefs.ErrInvalidArgument)
			}
			return nil
		},
		RunE: opts.onVM(func(cmd *cobra.Command, node nodev1.NodeService, vm *nodev1.VM) error {
			request.Vm = vm
			status, err := node.Wake(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			return follow(cmd, opts, node, status, detach)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&request.Digest, "digest", "", "refuse unless this snapshot owns the VM")
	flags.BoolVar(&request.Force, "force", false, "with --digest: restore that snapshot even if it is spent or not the newest")
	flags.StringVar(&request.LostNode, "lost-node", "", "the VM's node, which is lost: restore the newest snapshot, or that of --digest. You vouch that this node runs nothing any more")
	flags.StringVar(&request.Stdio, "stdio", "", "log URI of the task (file:///PATH, binary:///PATH, null://)")
	flags.StringVar(&request.Operation, "operation", "", "id of the operation, to repeat the same call safely")
	flags.BoolVar(&detach, "detach", false, "return once the operation is durable")
	return cmd
}
