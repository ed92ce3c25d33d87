package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
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
			if resp.GetWarning() != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "godwit: the list is not whole:", resp.GetWarning())
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			return printTree(cmd.OutOrStdout(), resp.GetSnapshots(), time.Now())
		}),
	}
}

// maxDepth bounds how far a line is set in.
const maxDepth = 8

// printTree draws a column for each line of descent, as git log --graph does.
func printTree(w io.Writer, all []*nodev1.SnapshotInfo, now time.Time) error {
	rows := make([][]string, 0, len(all))
	for _, b := range record.Tree(all) {
		rows = append(rows, []string{strings.Repeat("| ", min(b.Depth, maxDepth)) + "* " + shortDigest(b.GetDigest()),
			dash(b.GetName()), age(b.GetCreatedUnixNano(), now), record.Why(b.SnapshotInfo), mib(b.GetBytes()),
			mib(b.GetNewBytes()), dash(b.GetNode()), dash(marks(b.SnapshotInfo))})
	}
	return table(w, "SNAPSHOT NAME AGE WHY SIZE NEW NODE STATE", rows)
}

// marks are what else there is to know of a snapshot.
func marks(s *nodev1.SnapshotInfo) string {
	var all []string
	for _, m := range []struct {
		is   bool
		text string
	}{{s.GetOwner(), "the VM sleeps as this"}, {s.GetBase() && !s.GetOwner(), "the VM has gone on from it"},
		{s.GetPinned(), "pinned"}, {s.GetOwed(), "is being deleted"}} {
		if m.is {
			all = append(all, m.text)
		}
	}
	return strings.Join(all, ", ")
}

// shortDigest is how docker shows an id: 12 digits.
func shortDigest(digest string) string {
	hex := strings.TrimPrefix(digest, "sha256:")
	return hex[:min(len(hex), 12)]
}

// age is how long ago a snapshot was made, in its largest unit.
func age(at int64, now time.Time) string {
	d := now.Sub(time.Unix(0, at))
	switch seconds, minutes, hours := int(d.Seconds()), int(d.Minutes()), int(d.Hours()); {
	case at == 0:
		return "-"
	case minutes == 0:
		return fmt.Sprintf("%d s", max(0, seconds))
	case hours == 0:
		return fmt.Sprintf("%d min", minutes)
	case hours < 48:
		return fmt.Sprintf("%d h", hours)
	default:
		return fmt.Sprintf("%d d", hours/24)
	}
}
