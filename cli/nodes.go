package cli

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/moves"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func newNodes(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the cluster",
		RunE: opts.onMoves(func(cmd *cobra.Command, client *moves.Client, _ []string) error {
			resp, err := client.Nodes(cmd.Context(), &nodev1.NodesRequest{})
			if err != nil {
				return err
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			rows := make([][]string, 0, len(resp.GetNodes()))
			for _, n := range resp.GetNodes() {
				rows = append(rows, nodeRow(n, resp.GetStore()))
			}
			if err := table(cmd.OutOrStdout(), "NODE STATUS ADDRESS VMS FREE-RAM VERSION SEEN", rows); err != nil {
				return err
			}
			return printStore(cmd.OutOrStdout(), resp.GetStore(), false)
		}),
	}
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
	if slices.Contains(store.GetMissing(), n.GetName()) {
		status += ", not reported"
	}
	if slices.Contains(store.GetRetired(), n.GetName()) {
		status += ", retired"
	}
	seen := time.Since(time.Unix(0, n.GetSeenUnixNano())).Round(time.Second)
	return []string{n.GetName(), status, dash(n.GetAddress()), fmt.Sprint(n.GetVms()), mib(n.GetFreeBytes()),
		n.GetVersion(), fmt.Sprintf("%v ago", max(0, seen))}
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
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			word := "is cordoned"
			if undo {
				word = "takes VMs"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "node %s %s\n", args[0], word)
			return err
		}),
	}
}
