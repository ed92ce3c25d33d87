package main

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

func newSnapshot(opts *options) *cobra.Command {
	return group("snapshot", "Look at snapshots", newSnapshotLs(opts), newSnapshotInspect(opts))
}

func newSnapshotLs(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "ls [VM]",
		Short: "List the snapshots of a VM, or of all VMs that the controller knows",
		Args:  check(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &nodev1.SnapshotsRequest{}
			if len(args) == 1 {
				vm, err := opts.vm(args[0])
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
			resp, err := node.Snapshots(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			if resp.GetWarning() != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "godwit:", resp.GetWarning())
			}
			rows := make([][]string, 0, len(resp.GetSnapshots()))
			for _, s := range resp.GetSnapshots() {
				rows = append(rows, snapshotRow(s))
			}
			return table(cmd.OutOrStdout(), "VM DIGEST GEN OPERATION CREATED BYTES USE", rows)
		},
	}
}

func snapshotRow(s *nodev1.SnapshotInfo) []string {
	use := "-"
	switch {
	case s.GetOwner():
		use = "owner"
	case s.GetSpent():
		use = "spent"
	}
	return []string{
		s.GetVm().GetNamespace() + "/" + s.GetVm().GetId(), s.GetDigest(), fmt.Sprint(s.GetGeneration()), s.GetOperation(),
		time.Unix(0, s.GetCreatedUnixNano()).UTC().Format(time.RFC3339), mib(s.GetBytes()), use,
	}
}

func newSnapshotInspect(opts *options) *cobra.Command {
	request := &nodev1.InspectRequest{}
	cmd := &cobra.Command{
		Use:   "inspect DIGEST",
		Short: "Show manifest and configuration of a snapshot as JSON",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("name one digest: %w", errdefs.ErrInvalidArgument)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			node, conn, err := opts.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer conn.Close()
			request.Digest = args[0]
			resp, err := node.Inspect(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), string(resp.GetJson()))
			return err
		},
	}
	cmd.Flags().StringVar(&request.Repository, "repository", "", "where it lies (default: as the record that knows it says)")
	return cmd
}
