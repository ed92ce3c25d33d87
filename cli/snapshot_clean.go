package cli

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

func newSnapshotRm(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "rm DIGEST",
		Short: "Delete a snapshot that is not in use",
		Long: "The record of its VM decides: a snapshot that is pinned, that owns a VM, that a running VM was woken\n" +
			"from, or that an operation needs is refused. What the registry refuses to delete is\n" +
			"tried again until it is done.",
		Args: firstDigest,
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			if err := opts.resolveDigests(cmd.Context(), nil, &args[0]); err != nil {
				return err
			}
			resp, err := node.Drop(cmd.Context(), &nodev1.DropRequest{Digest: args[0]})
			if err != nil {
				return record.FromWire(err)
			}
			if resp.GetWarning() != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "godwit:", resp.GetWarning())
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s removed\n", args[0])
			return err
		}),
	}
}

func newSnapshotPrune(opts *options) *cobra.Command {
	request := &nodev1.PruneRequest{}
	cmd := &cobra.Command{
		Use:   "prune [VM]",
		Short: "Delete what neither a record nor the retention rule keeps",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				vm, err := opts.resolve(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				request.Vm = vm
			}
			node, conn, err := opts.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer conn.Close()
			resp, err := node.Prune(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			return printPruned(cmd, opts, resp, request.GetDryRun())
		},
	}
	cmd.Flags().BoolVar(&request.DryRun, "dry-run", false, "only tell what would be deleted")
	return cmd
}

// printPruned tells each; what could not be looked at is the command's error.
func printPruned(cmd *cobra.Command, opts *options, resp *nodev1.PruneResponse, dry bool) error {
	if opts.output == "json" {
		if err := printJSON(cmd.OutOrStdout(), resp); err != nil {
			return err
		}
	} else {
		rows := make([][]string, 0, len(resp.GetPruned()))
		for _, p := range resp.GetPruned() {
			done := "deleted"
			switch {
			case p.GetError() != "":
				done = "stays: " + p.GetError()
			case dry:
				done = "would be deleted"
			}
			vm := dash("")
			if p.GetVm() != nil {
				vm = p.GetVm().GetNamespace() + "/" + p.GetVm().GetId()
			}
			rows = append(rows, []string{vm, dash(p.GetDigest()), mib(p.GetBytes()), p.GetWhy(), done})
		}
		if err := table(cmd.OutOrStdout(), "VM DIGEST BYTES WHY RESULT", rows); err != nil {
			return err
		}
	}
	if resp.GetWarning() != "" {
		return fmt.Errorf("prune: %s: %w", resp.GetWarning(), errdefs.ErrUnavailable)
	}
	return nil
}
