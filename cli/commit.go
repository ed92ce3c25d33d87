package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

func newCommit(opts *options) *cobra.Command {
	o := client.CommitOptions{}
	cmd := &cobra.Command{
		Use:   "commit VM IMAGE",
		Short: "Make an image of what a VM that runs has changed",
		Long: "Make the image of a VM of this node anew, with one layer more: what the VM has changed on its disk. The VM\n" +
			"goes on. A file that is written meanwhile may be half of the old and half of the new.\n" +
			"Mounts and volumes are left out. All files of the VM are read and compared with the image.",
		RunE: opts.resolved(func(cmd *cobra.Command, args []string, c *client.Client, vm *nodev1.VM) error {
			img, err := c.Commit(cmd.Context(), vm, args[1], o)
			if err != nil {
				return err
			}
			return opts.print(cmd, screen.Result{Value: documentOf(*img), Names: []string{img.Name},
				Text: said("%s", img.Name)})
		}),
	}
	cmd.Flags().StringVarP(&o.Author, "author", "a", "", "who has made the image, such as \"Ada <ada@example.com>\"")
	cmd.Flags().StringVarP(&o.Message, "message", "m", "", "what the image's history says of it")
	return cmd
}

// changesDocument is what diff prints.
type changesDocument struct {
	Changes []client.FileChange `json:"changes"`
}

func newDiff(opts *options) *cobra.Command {
	flags := screen.ListFlags{}
	cmd := &cobra.Command{
		Use:   "diff VM",
		Short: "List the files that differ from the image of a VM that runs",
		Long: "List what a VM of this node has added (A), changed (C) and deleted (D) on its disk since its image. Mounts\n" +
			"and volumes are left out. All files of the VM are read and compared with the image.",
		RunE: opts.resolved(func(cmd *cobra.Command, _ []string, c *client.Client, vm *nodev1.VM) error {
			all, err := c.Diff(cmd.Context(), vm)
			if err != nil {
				return fmt.Errorf("compare %s with its image: %w", vm.GetId(), err)
			}
			l := screen.List{
				Columns: []screen.Column{{Title: "KIND"}, {Title: "PATH", Keep: true}},
				Whole: func(left []screen.Item) any {
					return changesDocument{screen.Values[client.FileChange](left)}
				},
			}
			for _, change := range all {
				l.Items = append(l.Items, screen.Item{Value: change, Name: change.Path, ID: change.Path,
					Row: []string{change.Kind, change.Path}})
			}
			return opts.list(cmd, l, flags)
		}),
	}
	flags.Add(cmd.Flags())
	return cmd
}
