package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
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
			ready := (time.Duration(resp.GetReadyMs()) * time.Millisecond).Round(100 * time.Millisecond)
			text := said("%s golden snapshot of %s (ready after %v, %s stored of %s)", resp.GetDigest(), request.GetImage(),
				ready, screen.Bytes(resp.GetPushedBytes()), screen.Bytes(resp.GetResidentBytes()))
			return opts.print(cmd, screen.Result{Value: resp, Names: []string{resp.GetDigest()}, Text: text})
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
			return opts.list(cmd, goldenList(resp), screen.ListFlags{})
		}),
	}
}

func goldenList(resp *nodev1.GoldenListResponse) screen.List {
	l := screen.List{
		Columns: screen.Columns("NAME", "IMAGE", "VMM", "MEMORY", "VCPUS", "SIZE", "AGE", "DIGEST"),
		Whole:   func([]screen.Item) any { return resp },
	}
	l.Columns[len(l.Columns)-1].Keep = true
	for _, g := range resp.GetGolden() {
		l.Items = append(l.Items, screen.Item{Value: g, Name: g.GetDigest(), Row: []string{
			g.GetName(), g.GetImage(), g.GetVmm(), screen.Bytes(g.GetMemory()), fmt.Sprint(g.GetVcpus()),
			screen.Bytes(g.GetBytes()), screen.Since(g.GetCreatedUnixNano()), g.GetDigest(),
		}})
	}
	return l
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
			var names, lines []string
			for _, g := range resp.GetDropped() {
				names = append(names, g.GetDigest())
				lines = append(lines, fmt.Sprintf("%s of %s deleted", g.GetDigest(), g.GetName()))
			}
			return opts.print(cmd, screen.Result{Value: resp, Names: names, Text: saidLines(lines)})
		}),
	}
}
