package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/moves"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
)

func newDrain(opts *options) *cobra.Command {
	d := &drain{opts: opts, request: &nodev1.DrainRequest{}, seen: map[string]bool{}}
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move all VMs away from a node, and let none come",
		Long: "Cordon a node and move all its VMs away. Moves to it are called off; a VM that wakes there, or\n" +
			"comes there all the same, is moved on. It ends with success when the node has no VM any more.",
		PreRunE: func(_ *cobra.Command, args []string) error {
			if err := moves.CheckMode(d.request.GetMode()); err != nil {
				return fmt.Errorf("drain node %s: %w", args[0], err)
			}
			return nil
		},
		RunE: opts.onMoves(func(cmd *cobra.Command, client *moves.Client, args []string) error {
			d.request.Node = args[0]
			d.patience = opts.waitForDaemon(cmd, func() {})
			d.patience.Met = false
			for {
				if over, err := d.round(cmd, client); over || err != nil {
					return errors.Join(err, d.print(cmd))
				}
			}
		}),
	}
	cmd.Flags().StringVar(&d.request.To, "to", "", "node that shall have them (default: the ones with the most room)")
	cmd.Flags().StringVar(&d.request.Mode, "mode", "auto", "live, cold or auto, as of migrate")
	cmd.Flags().BoolVar(&d.detach, "detach", false, "return once all moves are ordered")
	return cmd
}

// drain is the order to drain a node, given until nothing is left to do.
type drain struct {
	opts     *options
	request  *nodev1.DrainRequest
	detach   bool
	seen     map[string]bool // operations that were followed
	patience moves.Patience
	done     *nodev1.DrainResponse // for a program: what has become of all; nil: there was no answer
}

// print writes the one document of a drain, where a program reads. Others were told of each move as it ended.
func (d *drain) print(cmd *cobra.Command) error {
	if d.done == nil || !d.opts.machine() {
		return nil
	}
	return screen.Document(cmd.OutOrStdout(), d.opts.format(), d.done)
}

// follow follows one move.
func (d *drain) follow(cmd *cobra.Command, node statuses, move *nodev1.StatusResponse, detach bool) error {
	if !d.opts.machine() {
		return follow(cmd, d.opts, node, move, detach)
	}
	status, err := await(cmd, d.opts, node, move, detach)
	same := func(m *nodev1.StatusResponse) bool { return m.GetOperation().GetId() == status.GetOperation().GetId() }
	if i := slices.IndexFunc(d.done.GetMoves(), same); i >= 0 {
		d.done.Moves[i] = status
	} else {
		d.done.Moves = append(d.done.Moves, status)
	}
	return err
}

// round orders what leaves the node, and follows what there is. It is over when a node is found
// empty, or, with detach, when all that is there leaves: what was followed otherwise may have left
// a VM there.
func (d *drain) round(cmd *cobra.Command, client *moves.Client) (over bool, err error) {
	var resp *nodev1.DrainResponse
	err = d.patience.Ask(cmd.Context(), func(ctx context.Context) (err error) {
		resp, err = client.Drain(ctx, d.request)
		return err
	})
	if err != nil {
		return false, err
	}
	if d.done == nil {
		d.done = &nodev1.DrainResponse{}
	}
	d.done.Refused = resp.GetRefused()
	for _, r := range resp.GetRefused() {
		d.opts.note(cmd, r)
	}
	stay, others := len(resp.GetRefused()), 0
	for _, m := range resp.GetMoves() {
		leaves := d.leaves(m.GetOperation())
		if !leaves {
			others++
		}
		known := d.seen[m.GetOperation().GetId()]
		if known && leaves && d.detach {
			continue
		}
		d.seen[m.GetOperation().GetId()] = true
		err := d.follow(cmd, moving{client}, m, d.detach && leaves)
		if err == nil {
			continue
		}
		if cmd.Context().Err() != nil {
			return false, err
		}
		d.opts.note(cmd, d.opts.explain(err).Error())
		if leaves || known { // what comes to the node and fails has left nothing there
			stay++
		}
	}
	if stay > 0 {
		return false, fmt.Errorf("drain node %s: %d of %d VMs stay: %w", d.request.GetNode(), stay,
			len(resp.GetMoves())+len(resp.GetRefused()), errdefs.ErrAborted)
	}
	return others == 0 && (d.detach || len(resp.GetMoves()) == 0), nil
}

// leaves reports whether an operation takes its VM off the node.
func (d *drain) leaves(op *nodev1.Operation) bool {
	return op.GetKind() == nodev1.Kind_KIND_MIGRATE && op.GetSource() == d.request.GetNode()
}
