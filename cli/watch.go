package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/moves"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
)

func newWatch(opts *options) *cobra.Command {
	request := &nodev1.WatchRequest{}
	cmd := &cobra.Command{
		Use:   "watch [OPERATION]",
		Short: "Tell the events of moves as they come",
		Long: "Tell the events of all moves, or of one until it is over, from the oldest that is remembered on, and go on " +
			"as they come.\n" +
			"While godwitd or the controller is started again it waits, and goes on after the last one that it has told.",
		RunE: opts.onMoves(func(cmd *cobra.Command, client *moves.Client, args []string) error {
			f := &moves.Follower{
				From: client, Patience: opts.waitForDaemon(cmd, func() {}),
				Do:  func(ev *nodev1.MoveEvent) error { return opts.tellEvent(cmd, ev) },
				Gap: func(first, last uint64) { opts.note(cmd, gap(first, last)) },
			}
			f.Met = false // a daemon that is not there is no restart
			if len(args) == 1 {
				operation, err := operationOf(cmd.Context(), client, args[0])
				if err != nil {
					return err
				}
				request.Operation, request.UntilSettled = operation, true
			}
			return f.Follow(cmd.Context(), request)
		}),
	}
	cmd.Flags().Uint64Var(&request.After, "after", 0, "id of the last event that is known")
	return cmd
}

func (o *options) tellEvent(cmd *cobra.Command, ev *nodev1.MoveEvent) error {
	if o.machine() {
		return screen.Each(cmd.OutOrStdout(), o.format(), ev)
	}
	text := fmt.Sprintf("%d %s %s %s/%s %s -> %s %s", ev.GetId(), time.Unix(0, ev.GetUnixNano()).UTC().
		Format(time.RFC3339Nano), ev.GetType(),
		ev.GetVm().GetNamespace(), ev.GetVm().GetId(), screen.Dash(ev.GetSource()), screen.Dash(ev.GetDestination()),
		ev.GetReason())
	return tell(cmd.OutOrStdout(), "%s\n", strings.TrimSpace(text))
}

// gap says which events cannot be told any more.
func gap(first, last uint64) string {
	which := fmt.Sprintf("events %d to %d are", first, last)
	if first == last {
		which = fmt.Sprintf("event %d is", first)
	}
	return which + " not kept any more: what became of the VMs, godwit ps and godwit migrations say"
}
