package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

func newSnapshotDiff(opts *options) *cobra.Command {
	request := &nodev1.DiffRequest{}
	cmd := &cobra.Command{
		Use:   "diff FROM TO",
		Short: "Tell how many pages differ between two snapshots",
		Args: func(_ *cobra.Command, args []string) error {
			if err := checkDigest("FROM", args[0]); err != nil {
				return err
			}
			return checkDigest("TO", args[1])
		},
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			request.From, request.To = args[0], args[1]
			if err := opts.resolveDigests(cmd.Context(), nil, &request.From, &request.To); err != nil {
				return err
			}
			resp, err := node.Diff(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			return printDiff(cmd.OutOrStdout(), resp)
		}),
	}
	cmd.Flags().StringVar(&request.FromRepository, "from-repository", "",
		"where FROM lies (default: as the record that knows it says)")
	cmd.Flags().StringVar(&request.ToRepository, "to-repository", "",
		"where TO lies (default: as the record that knows it says)")
	return cmd
}

const pageSize = 4096

func printDiff(w io.Writer, resp *nodev1.DiffResponse) error {
	rows := make([][]string, 0, len(resp.GetSpaces()))
	for _, s := range resp.GetSpaces() {
		rows = append(rows, []string{
			s.GetName(), fmt.Sprint(s.GetSame()), fmt.Sprint(s.GetChanged()), fmt.Sprint(s.GetAdded()),
			fmt.Sprint(s.GetRemoved()),
			mib((s.GetChanged() + s.GetAdded()) * pageSize),
		})
	}
	return table(w, "SPACE SAME CHANGED ADDED REMOVED NEW", rows)
}

func newSnapshotCopy(opts *options) *cobra.Command {
	request := &nodev1.CopyRequest{}
	cmd := &cobra.Command{
		Use:   "copy DIGEST TO",
		Short: "Bring a snapshot into another repository or layout directory",
		Long: "TO is a repository (registry.example/backup/web) or oci-layout:DIRECTORY. Every frame is\n" +
			"verified on the way, and the manifest is stored last. The copy has the same digest; no\n" +
			"record knows it, and no retention rule touches it.",
		Args: firstDigest,
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			request.Digest, request.To = args[0], args[1]
			if err := opts.resolveDigests(cmd.Context(), nil, &request.Digest); err != nil {
				return err
			}
			resp, err := node.Copy(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s copied to %s:%s (%s sent of %s)\n",
				request.GetDigest(), request.GetTo(), resp.GetTag(), mib(resp.GetBytes()), mib(resp.GetTotal()))
			return err
		}),
	}
	repositoryFlag(cmd, &request.Repository)
	cmd.Flags().StringVar(&request.Tag, "tag", "", "tag of the copy (default: that of the snapshot)")
	return cmd
}
