package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/client"
	"godwit.dev/godwit/internal/visible"
)

func newLogs(opts *options) *cobra.Command {
	o, tail, since, until := client.LogOptions{}, "", "", ""
	cmd := &cobra.Command{
		Use:   "logs VM",
		Short: "Show what a VM that runs detached has written",
		Long: "Show the log of a VM, also of the time when it was on other nodes. With --follow it goes on over sleeps\n" +
			"and wakes on this node, until the VM ends or is another node's. The time of a line is when its node had it:\n" +
			"the log itself is what the VM has written.",
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Tail = -1
			if tail != "all" {
				n, err := strconv.Atoi(tail)
				if err != nil || n < 0 {
					return fmt.Errorf("--tail %q: write a number of lines, or all: %w", tail, errdefs.ErrInvalidArgument)
				}
				o.Tail = n
			}
			var err error
			if o.Since, err = when("since", since, time.Now()); err != nil {
				return err
			}
			if o.Until, err = when("until", until, time.Now()); err != nil {
				return err
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
	cmd.Flags().BoolVarP(&o.Timestamps, "timestamps", "t", false, "begin each line with its time")
	cmd.Flags().StringVar(&since, "since", "", "only lines since then: a time, or how long ago, such as 10m")
	cmd.Flags().StringVar(&until, "until", "", "only lines until then")
	return cmd
}
