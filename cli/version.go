package cli

import (
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/version"
)

func newVersion(opts *options) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show version, commit and the versions of protocols and formats",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return version.Write(cmd.OutOrStdout(), "godwit", asJSON || opts.output == "json")
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "the same as --output json")
	return cmd
}
