package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
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
			return opts.list(cmd, diffList(resp), screen.ListFlags{})
		}),
	}
	cmd.Flags().StringVar(&request.FromRepository, "from-repository", "",
		"where FROM lies (default: as the record that knows it says)")
	cmd.Flags().StringVar(&request.ToRepository, "to-repository", "",
		"where TO lies (default: as the record that knows it says)")
	return cmd
}

const pageSize = 4096

func diffList(resp *nodev1.DiffResponse) screen.List {
	l := screen.List{
		Columns: []screen.Column{{Title: "SPACE", Keep: true}, {Title: "SAME", Right: true},
			{Title: "CHANGED", Right: true}, {Title: "ADDED", Right: true}, {Title: "REMOVED", Right: true},
			{Title: "NEW", Right: true}},
		Whole: func([]screen.Item) any { return resp },
	}
	for _, s := range resp.GetSpaces() {
		l.Items = append(l.Items, screen.Item{Value: s, Name: s.GetName(), Row: []string{
			s.GetName(), fmt.Sprint(s.GetSame()), fmt.Sprint(s.GetChanged()), fmt.Sprint(s.GetAdded()),
			fmt.Sprint(s.GetRemoved()), screen.Bytes((s.GetChanged() + s.GetAdded()) * pageSize),
		}})
	}
	return l
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
			text := said("%s copied to %s:%s (%s sent of %s)", request.GetDigest(), request.GetTo(), resp.GetTag(),
				screen.Bytes(resp.GetBytes()), screen.Bytes(resp.GetTotal()))
			return opts.print(cmd, screen.Result{Value: resp, Names: args[:1], Text: text})
		}),
	}
	repositoryFlag(cmd, &request.Repository)
	cmd.Flags().StringVar(&request.Tag, "tag", "", "tag of the copy (default: that of the snapshot)")
	return cmd
}
