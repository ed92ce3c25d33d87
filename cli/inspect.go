package cli

import (
	"github.com/spf13/cobra"

	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

func newInspect(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect VM [VM...]",
		Short: "Show all that this node knows of a VM, as JSON",
		Long: "Show one document of each VM, in a list: what godwitd knows, its record, and the container and the task of\n" +
			"containerd. What could not be read is named under unread.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c := opts.client()
			defer c.Close()
			all := []*client.Inspection{}
			for _, arg := range args {
				vm, err := c.Resolve(cmd.Context(), arg)
				if err != nil {
					return err
				}
				i, err := c.Inspect(cmd.Context(), vm)
				if err != nil {
					return err
				}
				all = append(all, i)
			}
			format := opts.format()
			if !format.Machine() { // it is a document in any case
				format = screen.JSON
			}
			return screen.Document(cmd.OutOrStdout(), format, all)
		},
	}
}
