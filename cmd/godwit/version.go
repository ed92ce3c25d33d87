package main

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/api/version"
)

func newVersion(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show version, commit and protocol versions",
		Args:  check(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := map[string]any{
				"version": version.Version, "commit": version.Commit, "go": runtime.Version(),
				"protocols": map[string]any{"agent": 1, "machine": 1, "node": 1, "snapshot": 1, "spec": spec.Version},
			}
			if opts.output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "godwit %s (%s, %s)\nprotocols: agent v1, machine v1, node v1, snapshot v1, spec v%d\n",
				version.Version, version.Commit, runtime.Version(), spec.Version)
			return err
		},
	}
}
