package cli

import (
	"strings"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
)

func newSnapshotHistory(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "history VM",
		Short: "Show the snapshots of a VM as a tree: which came from which",
		Long: "Show when and why each snapshot was made, on which node, its size, and what it sent in addition to\n" +
			"its parent. Oldest first. A line that the VM left, when it was restored from an older snapshot, is set in.",
		RunE: opts.onVM(func(cmd *cobra.Command, node nodev1.NodeService, vm *nodev1.VM) error {
			resp, err := node.Snapshots(cmd.Context(), &nodev1.SnapshotsRequest{Vm: vm})
			if err != nil {
				return record.FromWire(err)
			}
			if resp.GetWarning() != "" && !opts.machine() {
				opts.note(cmd, "the list is not whole: "+resp.GetWarning())
			}
			return opts.list(cmd, treeOf(resp), screen.ListFlags{})
		}),
	}
}

// maxDepth bounds how far a line is set in.
const maxDepth = 8

// treeOf draws a column for each line of descent, as git log --graph does.
func treeOf(resp *nodev1.SnapshotsResponse) screen.List {
	l := screen.List{
		Columns: []screen.Column{{Title: "SNAPSHOT", Keep: true}, {Title: "NAME"}, {Title: "AGE"}, {Title: "WHY"},
			{Title: "SIZE", Right: true}, {Title: "NEW", Right: true}, {Title: "NODE", Spare: true}, {Title: "STATE"},
			{Title: "WHOLE-DIGEST", Wide: true}},
		Whole: func([]screen.Item) any { return resp },
	}
	for _, b := range record.Tree(resp.GetSnapshots()) {
		l.Items = append(l.Items, screen.Item{Value: b.SnapshotInfo, Name: b.GetDigest(), Row: []string{
			strings.Repeat("| ", min(b.Depth, maxDepth)) + "* " + short(b.GetDigest()), screen.Dash(b.GetName()),
			screen.Since(b.GetCreatedUnixNano()), record.Why(b.SnapshotInfo), screen.Bytes(b.GetBytes()),
			screen.Bytes(b.GetNewBytes()), screen.Dash(b.GetNode()), screen.Dash(marks(b.SnapshotInfo)), b.GetDigest(),
		}})
	}
	return l
}

// marks are what else there is to know of a snapshot.
func marks(s *nodev1.SnapshotInfo) string {
	var all []string
	for _, m := range []struct {
		is   bool
		text string
	}{{s.GetOwner(), "the VM sleeps as this"}, {s.GetBase() && !s.GetOwner(), "went on from it"},
		{s.GetPinned(), "pinned"}, {s.GetOwed(), "is being deleted"}} {
		if m.is {
			all = append(all, m.text)
		}
	}
	return strings.Join(all, ", ")
}
