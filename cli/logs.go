package cli

import (
	"fmt"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/client"
	"godwit.dev/godwit/internal/visible"
)

func newLogs(opts *options) *cobra.Command {
	o, tail := client.LogOptions{}, ""
	cmd := &cobra.Command{
		Use:   "logs VM",
		Short: "Show what a VM that runs detached has written",
		Long: "Show the log of a VM, as this node has it. With --follow it goes on over sleeps and wakes on this node,\n" +
			"until the VM ends or is another node's. The log is what the VM has written, and has no times of its own.",
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Tail = -1
			if tail != "all" {
				n, err := strconv.Atoi(tail)
				if err != nil || n < 0 {
					return fmt.Errorf("--tail %q: write a number of lines, or all: %w", tail, errdefs.ErrInvalidArgument)
				}
				o.Tail = n
			}
			c := opts.client()
			defer c.Close()
			vm, err := c.Resolve(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			o.Note = func(text string) { opts.note(cmd, text) }
			return c.Logs(cmd.Context(), vm, visible.Under(cmd.OutOrStdout()), o)
		},
	}
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on with what the VM writes")
	cmd.Flags().StringVar(&tail, "tail", "all", "only so many lines of the end")
	return cmd
}
