package cli

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
)

func newSnapshotRm(opts *options) *cobra.Command {
	of := ""
	cmd := &cobra.Command{
		Use:   "rm DIGEST",
		Short: "Delete a snapshot that is not in use",
		Long: "The record of its VM decides: a snapshot that is pinned, that owns a VM, that a running VM was woken\n" +
			"from, or that an operation needs is refused. What the registry refuses to delete is\n" +
			"tried again until it is done.",
		Args: firstDigest,
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			vm, err := opts.resolveOf(cmd.Context(), of, &args[0])
			if err != nil {
				return err
			}
			resp, err := node.Drop(cmd.Context(), &nodev1.DropRequest{Vm: vm, Digest: args[0]})
			if err != nil {
				return record.FromWire(err)
			}
			if resp.GetWarning() != "" && !opts.machine() {
				opts.note(cmd, resp.GetWarning())
			}
			return opts.print(cmd, screen.Result{Value: resp, Names: args[:1], Text: said("%s removed", args[0])})
		}),
	}
	ofFlag(cmd, &of)
	return cmd
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
	l := screen.List{
		Columns: []screen.Column{{Title: "VM", Keep: true}, {Title: "DIGEST", Keep: true}, {Title: "SIZE", Right: true},
			{Title: "WHY"}, {Title: "RESULT"}, {Title: "WHOLE-DIGEST", Wide: true}},
		Whole: func([]screen.Item) any { return resp },
	}
	for _, p := range resp.GetPruned() {
		vm := "-"
		if p.GetVm() != nil {
			vm = fullName(p.GetVm())
		}
		l.Items = append(l.Items, screen.Item{Value: p, Name: p.GetDigest(), Row: []string{
			vm, screen.Dash(short(p.GetDigest())), screen.Bytes(p.GetBytes()), p.GetWhy(), prunedText(p, dry),
			screen.Dash(p.GetDigest()),
		}})
	}
	if err := opts.list(cmd, l, screen.ListFlags{}); err != nil {
		return err
	}
	if resp.GetWarning() != "" {
		return fmt.Errorf("prune: %s: %w", resp.GetWarning(), errdefs.ErrUnavailable)
	}
	return nil
}

func prunedText(p *nodev1.Pruned, dry bool) string {
	switch {
	case p.GetError() != "":
		return "stays: " + p.GetError()
	case dry:
		return "would be deleted"
	}
	return "deleted"
}
