package cli

import (
	"io"

	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/cli/screen"
)

func newVersion(opts *options) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show version, commit and the versions of protocols and formats",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				opts.output = string(screen.JSON)
			}
			return opts.print(cmd, screen.Result{Value: version.Of("godwit"), Names: []string{version.Version},
				Text: func(w io.Writer) error { return version.Write(w, "godwit", false) }})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "the same as --output json")
	return cmd
}
