package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// newGolden is the verb of the release before for templates of images. It goes with the next one.
func newGolden(opts *options) *cobra.Command {
	flags := &imageFlags{}
	cmd := &cobra.Command{
		Use:    "golden IMAGE [COMMAND [ARG...]]",
		Hidden: true,
		Short:  "Store the pages that all VMs of an image have in common",
		Long:   "It is called godwit template make --image now. The next release does not know this verb.",
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			opts.renamed(cmd, "godwit template make --image")
			return flags.check()
		},
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			request := flags.request(opts.namespace, args)
			resp, err := node.Golden(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s golden snapshot of %s (ready after %v, %s stored of %s)\n",
				resp.GetDigest(), request.GetImage(),
				(time.Duration(resp.GetReadyMs()) * time.Millisecond).Round(100*time.Millisecond), mib(resp.GetPushedBytes()),
				mib(resp.GetResidentBytes()))
			return err
		}),
	}
	flags.add(cmd)
	cmd.Flags().SetInterspersed(false) // what stands after the image is the container's
	cmd.AddCommand(newGoldenList(opts), newGoldenRemove(opts))
	return cmd
}

// renamed says the new name of a verb, once.
func (o *options) renamed(cmd *cobra.Command, now string) {
	o.note(cmd, fmt.Sprintf("%s is called %s now; the next release does not know the old name", cmd.CommandPath(), now))
}

func newGoldenList(opts *options) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List golden snapshots",
		PreRun: func(cmd *cobra.Command, _ []string) { opts.renamed(cmd, "godwit template ls --image") },
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, _ []string) error {
			resp, err := node.GoldenList(cmd.Context(), &nodev1.GoldenListRequest{})
			if err != nil {
				return record.FromWire(err)
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			return printGolden(cmd.OutOrStdout(), resp.GetGolden())
		}),
	}
}

func printGolden(w io.Writer, list []*nodev1.GoldenInfo) error {
	rows := make([][]string, 0, len(list))
	for _, g := range list {
		rows = append(rows, []string{
			g.GetName(), g.GetImage(), g.GetVmm(), mib(g.GetMemory()), fmt.Sprint(g.GetVcpus()), mib(g.GetBytes()),
			time.Unix(0, g.GetCreatedUnixNano()).UTC().Format(time.RFC3339), g.GetDigest(),
		})
	}
	return table(w, "NAME IMAGE VMM MEMORY VCPUS SIZE CREATED DIGEST", rows)
}

func newGoldenRemove(opts *options) *cobra.Command {
	return &cobra.Command{
		Use: "rm IMAGE|DIGEST", Short: "Delete the golden snapshots of an image, or one by its digest",
		Long:   "Snapshots that refer to its pages keep them: every VM sleeps and wakes as before.",
		PreRun: func(cmd *cobra.Command, _ []string) { opts.renamed(cmd, "godwit template rm --image") },
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			resp, err := node.GoldenDrop(cmd.Context(), &nodev1.GoldenDropRequest{What: args[0]})
			if err != nil {
				return record.FromWire(err)
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			for _, g := range resp.GetDropped() {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s of %s deleted\n", g.GetDigest(), g.GetName()); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}
