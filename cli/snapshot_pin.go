package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
)

func newSnapshotPin(opts *options) *cobra.Command {
	name, of := "", ""
	cmd := &cobra.Command{
		Use:   "pin DIGEST",
		Short: "Have nothing delete a snapshot, until it is unpinned",
		Long: "Keep a snapshot: no rule deletes it, nor does godwit snapshot rm, nor godwit rm without --force.\n" +
			"DIGEST may be a name.",
		Args: firstDigest,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" {
				return nil
			}
			if err := record.CheckSnapshotName(name); err != nil {
				return fmt.Errorf("--name: %w", err)
			}
			return nil
		},
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			request := &nodev1.PinRequest{}
			if cmd.Flags().Changed("name") {
				request.Name = &name
			}
			return pin(cmd, opts, node, args[0], of, request, true)
		}),
	}
	ofFlag(cmd, &of)
	cmd.Flags().StringVar(&name, "name", "", "what it is called from now on; empty: it has no name any more")
	return cmd
}

func newSnapshotUnpin(opts *options) *cobra.Command {
	of := ""
	cmd := &cobra.Command{
		Use:   "unpin DIGEST",
		Short: "Let a pinned snapshot be deleted",
		Long: "Take a pin back. A checkpoint that was made by hand stays until godwit snapshot rm; any other goes\n" +
			"when the retention rule says so. DIGEST may be a name.",
		Args: firstDigest,
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			return pin(cmd, opts, node, args[0], of, &nodev1.PinRequest{}, false)
		}),
	}
	ofFlag(cmd, &of)
	return cmd
}

func pin(cmd *cobra.Command, opts *options, node nodev1.NodeService, snapshot, of string,
	request *nodev1.PinRequest, pinned bool) (err error) {
	request.Digest, request.Pinned = snapshot, &pinned
	if request.Vm, err = opts.resolveOf(cmd.Context(), of, &request.Digest); err != nil {
		return err
	}
	rec, err := node.Pin(cmd.Context(), request)
	if err != nil {
		return record.FromWire(err)
	}
	for _, ref := range rec.GetSnapshots() {
		if ref.GetDigest() != request.GetDigest() {
			continue
		}
		text := "pinned"
		switch {
		case !pinned && ref.GetManual():
			text = "not pinned; it was made by hand and stays until godwit snapshot rm"
		case !pinned:
			text = "not pinned; the retention rule may delete it"
		}
		called := ""
		if ref.GetName() != "" {
			called = " (" + ref.GetName() + ")"
		}
		return opts.print(cmd, screen.Result{Value: ref, Names: []string{ref.GetDigest()},
			Text: said("%s%s of VM %s: %s", ref.GetDigest(), called, fullName(rec.GetVm()), text)})
	}
	return nil
}
