package cli

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/moves"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
)

func newNodes(opts *options) *cobra.Command {
	flags := screen.ListFlags{}
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the cluster",
		RunE: opts.onMoves(func(cmd *cobra.Command, client *moves.Client, _ []string) error {
			resp, err := client.Nodes(cmd.Context(), &nodev1.NodesRequest{})
			if err != nil {
				return err
			}
			if err := opts.list(cmd, nodeList(resp), flags); err != nil || !opts.table(flags) {
				return err
			}
			return printStore(cmd.OutOrStdout(), resp.GetStore(), false)
		}),
	}
	flags.Add(cmd.Flags())
	return cmd
}

func nodeList(resp *nodev1.NodesResponse) screen.List {
	l := screen.List{
		Columns: []screen.Column{{Title: "NODE", Keep: true}, {Title: "STATE"}, {Title: "VMS", Right: true},
			{Title: "FREE", Right: true}, {Title: "RAM", Right: true}, {Title: "SEEN"}, {Title: "VERSION"},
			{Title: "ADDRESS", Wide: true}},
		Whole: func(left []screen.Item) any {
			resp.Nodes = screen.Values[*nodev1.NodeInfo](left)
			return resp
		},
	}
	for _, n := range resp.GetNodes() {
		l.Items = append(l.Items, screen.Item{Value: n, Name: n.GetName(), ID: n.GetName(), Row: nodeRow(n, resp.GetStore())})
	}
	return l
}

func nodeRow(n *nodev1.NodeInfo, store *nodev1.StoreState) []string {
	status := "silent"
	if n.GetUp() {
		status = "up"
	}
	if n.GetCordoned() {
		status += ", cordoned"
	}
	if n.GetController() {
		status += ", controller"
	}
	if n.GetControllerOnly() {
		status += " without VMs"
	}
	if slices.Contains(store.GetMissing(), n.GetName()) {
		status += ", not reported"
	}
	if slices.Contains(store.GetRetired(), n.GetName()) {
		status += ", retired"
	}
	return []string{n.GetName(), status, fmt.Sprint(n.GetVms()), screen.Bytes(n.GetFreeBytes()),
		screen.Bytes(n.GetRamBytes()), screen.Since(n.GetSeenUnixNano()) + " ago", n.GetVersion(),
		screen.Dash(n.GetAddress())}
}

func newCordon(opts *options) *cobra.Command {
	return cordon(opts, "cordon NODE", "Let no VM come to a node", false)
}

func newUncordon(opts *options) *cobra.Command {
	return cordon(opts, "uncordon NODE", "Let VMs come to a node again", true)
}

func cordon(opts *options, use, short string, undo bool) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		RunE: opts.onMoves(func(cmd *cobra.Command, client *moves.Client, args []string) error {
			resp, err := client.Cordon(cmd.Context(), &nodev1.CordonRequest{Node: args[0], Undo: undo})
			if err != nil {
				return err
			}
			word := "is cordoned"
			if undo {
				word = "takes VMs"
			}
			return opts.print(cmd, screen.Result{Value: resp, Names: args[:1], Text: said("node %s %s", args[0], word)})
		}),
	}
}
