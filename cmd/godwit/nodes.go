package main

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/moves"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func newNodes(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the cluster",
		Args:  check(cobra.NoArgs),
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
				rows = append(rows, nodeRow(n))
			}
			return table(cmd.OutOrStdout(), "NODE STATUS ADDRESS VMS FREE-RAM VERSION SEEN", rows)
		}),
	}
}

func nodeRow(n *nodev1.NodeInfo) []string {
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
	seen := time.Since(time.Unix(0, n.GetSeenUnixNano())).Round(time.Second)
	return []string{n.GetName(), status, dash(n.GetAddress()), fmt.Sprint(n.GetVms()), mib(n.GetFreeBytes()), n.GetVersion(), fmt.Sprintf("%v ago", max(0, seen))}
}

func newCordon(opts *options) *cobra.Command {
	return cordon(opts, "cordon NODE", "Let no VM come to a node", false)
}

func newUncordon(opts *options) *cobra.Command {
	return cordon(opts, "uncordon NODE", "Let VMs come to a node again", true)
}

func cordon(opts *options, use, short string, undo bool) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: check(cobra.ExactArgs(1)),
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

func newDrain(opts *options) *cobra.Command {
	request := &nodev1.DrainRequest{}
	detach := false
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move all VMs away from a node, and let none come",
		Args:  check(cobra.ExactArgs(1)),
		PreRunE: func(_ *cobra.Command, args []string) error {
			if err := moves.CheckMode(request.GetMode()); err != nil {
				return fmt.Errorf("drain node %s: %w", args[0], err)
			}
			return nil
		},
		RunE: opts.onMoves(func(cmd *cobra.Command, client *moves.Client, args []string) error {
			request.Node = args[0]
			resp, err := client.Drain(cmd.Context(), request)
			if err != nil {
				return err
			}
			for _, r := range resp.GetRefused() {
				fmt.Fprintln(cmd.ErrOrStderr(), "godwit:", r)
			}
			failed := len(resp.GetRefused())
			for _, m := range resp.GetMoves() {
				if err := follow(cmd, opts, moving{client}, m, detach); err != nil {
					if cmd.Context().Err() != nil {
						return err
					}
					fmt.Fprintln(cmd.ErrOrStderr(), "godwit:", err)
					failed++
				}
			}
			if failed > 0 {
				return fmt.Errorf("drain node %s: %d of %d VMs stay: %w", args[0], failed, len(resp.GetMoves())+len(resp.GetRefused()), errdefs.ErrAborted)
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&request.To, "to", "", "node that shall have them (default: the ones with the most room)")
	cmd.Flags().StringVar(&request.Mode, "mode", "auto", "live, cold or auto, as of migrate")
	cmd.Flags().BoolVar(&detach, "detach", false, "return once all moves are ordered")
	return cmd
}
